"""Which vectors a model's texts get: as its directory says, unless a user says otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bert_tf.checkpoint.sentence_modules import (
    PROMPTS_NAME,
    TEXTS_NAME,
    DenseLayer,
    SentenceModules,
    read_sentence_modules,
)
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.vectors.settings import MEAN, TOKENS, VectorSettings
from bert_tf.tasks.vectors.texts import SequenceMaker
from bert_tf.util.errors import UserError

if TYPE_CHECKING:
    from bert_tf.tasks.vectors.task import VectorTask

# google-research/bert's default for tokens; the last layer alone for pooled vectors.
_TOKEN_LAYERS, _POOLED_LAYERS = (-1, -2, -3, -4), (-1,)


@dataclasses.dataclass(frozen=True)
class ChosenVectors:
    """All that decides the vectors of a model's texts, but for its network.

    Attributes:
      pooling: some of ``settings.POOLINGS``, whose vectors follow each other.
      layers: the layers as the user numbers them.
      normalize: whether vectors are scaled to unit length.
      max_seq_length: the most tokens of a sequence.
      dense: layers on pooled vectors.
      prompt: the text that precedes every text.
      pools_prompt: whether its tokens are pooled, too.
      lower_case: whether texts are lower-cased before they are tokenized.
      modules: what the model's directory says; None if it says nothing.
      notes: sentences for the user on what is used otherwise than it says.
    """

    pooling: tuple[str, ...]
    layers: tuple[int, ...]
    normalize: bool
    max_seq_length: int
    dense: tuple[DenseLayer, ...] = ()
    prompt: str = ""
    pools_prompt: bool = True
    lower_case: bool = False
    modules: SentenceModules | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What decides them, as flags where there are some."""
        parts = [f"--pooling={','.join(self.pooling)}"]
        if self.dense:
            parts.append(
                f"dense layers of {', '.join(str(len(d.bias)) for d in self.dense)} outputs"
            )
        if self.normalize:
            parts.append("--normalize")
        if self.prompt:
            parts.append(f"prompt {self.prompt!r}")
        return ", ".join(parts)

    @property
    def is_pooled(self) -> bool:
        """Whether a text gets one vector, rather than each of its tokens."""
        return self.pooling != (TOKENS,)

    def width(self, config: BertConfig) -> int:
        """The number of components of a vector."""
        if self.dense:
            return self.dense[-1].kernel.shape[1]
        return len(self.pooling) * config.hidden_size

    def maker(self, model: CompleteModel) -> SequenceMaker:
        """Makes the sequences of texts."""
        return SequenceMaker(
            model.tokenizer, self.max_seq_length, prompt=self.prompt, lower_case=self.lower_case
        )

    def task(self, model: CompleteModel) -> VectorTask:
        """The graph of the vectors."""
        # Imported here, so that mistakes in flags are reported before TensorFlow starts.
        from bert_tf.tasks.vectors.task import VectorTask

        not_pooled = 0
        if self.prompt and not self.pools_prompt:
            not_pooled = len(self.maker(model).sequence([""]).ids) - 1  # without [SEP]
        count = model.config.num_hidden_layers
        layers = tuple(layer % count for layer in self.layers)
        return VectorTask(
            model.config, layers, self.pooling, self.normalize, self.dense, not_pooled
        )

    def described(self) -> dict[str, Any]:
        """What the vectors depend on beyond the flags that have always decided them."""
        found: dict[str, Any] = {}
        if self.prompt:
            found["prompt"] = self.prompt
            found["pools the prompt"] = self.pools_prompt
        if self.lower_case:
            found["lower-cased before"] = True
        if self.dense:
            found["sha256 of the dense layers"] = [layer.digest for layer in self.dense]
        return found


def choose_vectors(
    model: CompleteModel,
    settings: VectorSettings,
    *,
    pooling: str = MEAN,
    max_seq_length: int | None = None,
    usual_length: int | None = None,
) -> ChosenVectors:
    """What decides the vectors of a model's texts.

    Args:
      model: the model; its directory may say what decides them.
      settings: what the user wants, which comes first.
      pooling: the default of a directory that says nothing.
      max_seq_length: the length that the user wants; None for the directory's.
      usual_length: that of a directory that says nothing; None for the network's positions.

    Raises:
      UserError: the network lacks a layer or has fewer positions, there is no such prompt, or the
        directory wants what is not computed here and the user gives no pooling.
    """
    config, notes = model.config, []
    try:
        modules = read_sentence_modules(model.checkpoint)
    except UserError as error:
        if settings.pooling is None:
            raise UserError(
                f"{str(error).rstrip('.')}; --pooling gives vectors of the network alone."
            ) from error
        modules, notes = None, [f"warning: {error} Only the network is used"]
    said = modules or SentenceModules(model.checkpoint, (pooling,), max_seq_length=usual_length)
    length, positions = max_seq_length, config.max_position_embeddings
    if length is None:
        length = min(positions, said.max_seq_length or positions)
    config.check_length(length, f"--max_seq_length={length} is")
    names = said.pooling if settings.pooling is None else tuple(settings.pooling.split(","))
    is_pooled = names != (TOKENS,)
    normalize = said.normalize and is_pooled if settings.normalize is None else settings.normalize
    chosen = ChosenVectors(
        names,
        settings.layers or (_POOLED_LAYERS if is_pooled else _TOKEN_LAYERS),
        normalize,
        length,
        dense=said.dense if is_pooled else (),
        prompt=_prompt(said, settings),
        pools_prompt=said.pools_prompt or not is_pooled,
        lower_case=said.lower_case and not model.tokenizer.lower_case,
        modules=modules,
    )
    _check_layers(chosen.layers, config)
    _check_widths(chosen, said, config)
    if modules is not None:
        notes = [*_differences(chosen, said, settings, config)]
    return dataclasses.replace(chosen, notes=tuple(notes))


def _check_layers(layers: tuple[int, ...], config: BertConfig) -> None:
    count = config.num_hidden_layers
    if not all(-count <= layer < count for layer in layers):
        raise UserError(
            f"--layers={','.join(map(str, layers))}: the network has {count} layers, so give "
            f"numbers from {-count} to {count - 1}."
        )


def _check_widths(chosen: ChosenVectors, modules: SentenceModules, config: BertConfig) -> None:
    """Raises UserError unless each dense layer takes what precedes it."""
    width = len(chosen.pooling) * config.hidden_size
    for layer in chosen.dense:
        if layer.kernel.shape[0] != width:
            raise UserError(
                f"{modules.path}: a dense layer takes vectors of {layer.kernel.shape[0]} "
                f"components, not of {width} as --pooling={','.join(chosen.pooling)} gives; leave "
                "--pooling out."
            )
        width = layer.kernel.shape[1]


def _prompt(modules: SentenceModules, settings: VectorSettings) -> str:
    """The prompt of that name, or the default one; "" for none."""
    name = modules.default_prompt if settings.prompt_name is None else settings.prompt_name
    if name and name not in modules.prompts:
        known = ", ".join(modules.prompts) or "none"
        raise UserError(f"--prompt_name={name}: the prompts next to the network are: {known}.")
    return modules.prompts.get(name, "")


def _differences(
    chosen: ChosenVectors, modules: SentenceModules, settings: VectorSettings, config: BertConfig
) -> Iterator[str]:
    """A sentence for everything that is not as the directory says."""
    default = modules.default_prompt or ""
    prompt = default if settings.prompt_name is None else settings.prompt_name
    count, positions = config.num_hidden_layers, config.max_position_embeddings
    length = min(modules.max_seq_length or chosen.max_seq_length, positions)
    if not chosen.is_pooled:
        yield f"--pooling={TOKENS}: nothing is pooled or scaled, otherwise than {modules.path} says"
    else:
        layers = tuple(layer % count - count for layer in chosen.layers)
        yield from _difference("pooling", chosen.pooling, modules.pooling, modules.path)
        yield from _difference("normalize", chosen.normalize, modules.normalize, modules.path)
        yield from _difference("layers", layers, _POOLED_LAYERS, modules.path)
    yield from _difference("max_seq_length", chosen.max_seq_length, length, TEXTS_NAME)
    yield from _difference("prompt_name", prompt, default, PROMPTS_NAME)
    if modules.prompts and not prompt and not default:
        known = ", ".join(modules.prompts)
        yield f"no prompt precedes the texts; --prompt_name chooses one of {PROMPTS_NAME}: {known}"


def _difference(flag: str, given: object, said: object, where: object) -> Iterator[str]:
    shown, other = (
        ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
        for value in (given, said)
    )
    if given != said:
        yield f"--{flag}={shown} is used, but {where} says {other}"
