"""Vectors of texts: which ones a model's texts get, and a model in memory that computes them.

They are as the model's directory says, unless a user says otherwise.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_tf.checkpoint.sentence_modules import (
    PROMPTS_NAME,
    TEXTS_NAME,
    SentenceModules,
    read_sentence_modules,
)
from bert_tf.inference.sequences import SequencePredictor, Text, listed, parts_of
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.vectors.settings import MEAN, TOKENS, VECTORS, VectorSettings
from bert_tf.tasks.vectors.texts import SequenceMaker, TokenSequence
from bert_tf.util.console import say
from bert_tf.util.errors import UserError

if TYPE_CHECKING:
    from bert_tf.tasks.vectors.task import VectorTask

# google-research/bert's default for tokens; the last layer alone for pooled vectors.
_TOKEN_LAYERS, _POOLED_LAYERS = (-1, -2, -3, -4), (-1,)


@dataclasses.dataclass(frozen=True)
class ChosenVectors:
    """How a model's texts become vectors.

    Attributes:
      maker: makes the sequences that the network reads.
      task: makes their vectors.
      modules: what the model's directory says; None if it says nothing.
      notes: sentences for the user on what is used otherwise than it says.
    """

    maker: SequenceMaker
    task: VectorTask
    modules: SentenceModules | None
    notes: Sequence[str]

    def __str__(self) -> str:
        """What decides them, as flags where there are some."""
        dense = ", ".join(str(len(layer.bias)) for layer in self.task.dense)
        parts = {
            f"--pooling={','.join(self.task.pooling)}": True,
            f"dense layers of {dense} outputs": dense,
            "--normalize": self.task.normalize,
            f"prompt {self.maker.prompt!r}": self.maker.prompt,
        }
        return ", ".join(part for part, is_used in parts.items() if is_used)


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
    length = max_seq_length
    if length is None:
        length = said.length_within(config.max_position_embeddings)
    config.check_length(length, f"--max_seq_length={length} is")
    prompt = said.prompt_of(settings.prompt_name)
    lower_case = said.lower_case and not model.tokenizer.lower_case
    maker = SequenceMaker(model.tokenizer, length, prompt=prompt, lower_case=lower_case)
    task = _task(model, settings, said, maker)
    if modules is not None:
        notes = [*_differences(maker, task, settings, modules)]
    return ChosenVectors(maker, task, modules, notes)


def _task(
    model: CompleteModel, settings: VectorSettings, said: SentenceModules, maker: SequenceMaker
) -> VectorTask:
    """The graph of the vectors; UserError if the network lacks a layer, or a dense one misfits."""
    names = said.pooling if settings.pooling is None else tuple(settings.pooling.split(","))
    is_pooled = names != (TOKENS,)
    layers = settings.layers or (_POOLED_LAYERS if is_pooled else _TOKEN_LAYERS)
    count = model.config.num_hidden_layers
    if not all(-count <= layer < count for layer in layers):
        raise UserError(
            f"--layers={','.join(map(str, layers))}: the network has {count} layers, so give "
            f"numbers from {-count} to {count - 1}."
        )
    dense = said.dense if is_pooled else ()
    width = len(names) * model.config.hidden_size
    for layer in dense:
        if layer.kernel.shape[0] != width:
            raise UserError(
                f"{said.path}: a dense layer takes vectors of {layer.kernel.shape[0]} components, "
                f"not of {width} as --pooling={','.join(names)} gives; leave --pooling out."
            )
        width = layer.kernel.shape[1]
    not_pooled = 0
    if maker.prompt and is_pooled and not said.pools_prompt:
        not_pooled = len(maker.sequence([""]).ids) - 1  # without [SEP]
    # Imported here, so that mistakes in flags are reported before TensorFlow starts.
    from bert_tf.tasks.vectors.task import VectorTask

    normalize = said.normalize and is_pooled if settings.normalize is None else settings.normalize
    return VectorTask(model.config, layers, names, normalize, dense, not_pooled)


def _differences(
    maker: SequenceMaker, task: VectorTask, settings: VectorSettings, said: SentenceModules
) -> Iterator[str]:
    """A sentence for everything that is not as the directory says."""
    prompt = said.default_prompt if settings.prompt_name is None else settings.prompt_name
    positions, count = task.config.max_position_embeddings, task.config.num_hidden_layers
    length = min(said.max_seq_length or maker.max_seq_length, positions)
    layers = tuple(layer % count - count for layer in task.layers)
    rows = [
        ("pooling", task.pooling, said.pooling, said.path),
        ("normalize", task.normalize, said.normalize, said.path),
        ("layers", layers, _POOLED_LAYERS, said.path),
        ("max_seq_length", maker.max_seq_length, length, TEXTS_NAME),
        ("prompt_name", prompt, said.default_prompt, PROMPTS_NAME),
    ]
    if not task.is_pooled:
        yield f"--pooling={TOKENS}: nothing is pooled or scaled, otherwise than {said.path} says"
        del rows[:3]
    for flag, used, other, where in rows:
        if used != other:
            yield f"--{flag}={_shown(used)} is used, but {where} says {_shown(other)}"
    if said.prompts and not prompt and not said.default_prompt:
        names = ", ".join(said.prompts)
        yield f"no prompt precedes the texts; --prompt_name chooses one of {PROMPTS_NAME}: {names}"


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


class TextEncoder(SequencePredictor):
    """A network with its weights; ``maker`` makes sequences of texts, of which it makes vectors."""

    def __init__(
        self,
        model: CompleteModel,
        settings: VectorSettings | ChosenVectors | None = None,
        *,
        max_seq_length: int | None = None,
        **options: Any,
    ) -> None:
        """Restores the weights.

        Args:
          model: the model, from ``model_directory.complete.find_model``.
          settings: which vectors; what they leave open is as the model's directory says, or else
            the mean of the last layer's. With a choice that has been made, ``max_seq_length`` is
            not read.
          max_seq_length: tokens to which longer texts are cut; None for what the directory says, or
            else the network's positions.
          **options: further arguments of :class:`SequencePredictor`.

        Raises:
          UserError: the weights do not belong to the model, it has fewer positions, or it lacks a
            layer.
        """
        if isinstance(settings, ChosenVectors):
            chosen = settings
        else:
            wanted = settings or VectorSettings()
            chosen = choose_vectors(model, wanted, max_seq_length=max_seq_length)
            for note in chosen.notes:
                say(note, stream=sys.stderr)
        self.maker, self._task = chosen.maker, chosen.task
        super().__init__(chosen.task, model.checkpoint, chosen.maker.max_seq_length, **options)

    def encode(self, texts: Sequence[Text]) -> np.ndarray:
        """The pooled vectors of texts or pairs, in their order.

        Returns: float32 [texts, D], or [texts, layers, D] for several layers. Raises UserError if
        tokens are not pooled (``tokens`` has their vectors).
        """
        if not self._task.is_pooled:
            raise UserError(
                f"pooling={TOKENS!r} gives every token vectors: use TextEncoder.tokens, or choose "
                "another pooling."
            )
        vectors, count = self.vectors(self._sequences(texts)), len(self._task.layers)
        shape = len(vectors), count, self._task.width
        stacked = np.concatenate(vectors or [np.empty(0, np.float32)]).reshape(shape)
        return stacked[:, 0] if count == 1 else stacked

    def predict(self, texts: Sequence[Text]) -> Sequence[np.ndarray]:
        """The vectors of each text, as :meth:`encode` or, unpooled, :meth:`tokens` gives them."""
        return list(self.encode(texts)) if self._task.is_pooled else self.tokens(texts)

    def tokens(self, texts: Sequence[Text]) -> list[np.ndarray]:
        """The vectors of every token, [CLS] and [SEP] included: float32 [tokens, layers, D] each.

        Raises UserError if tokens are pooled.
        """
        if self._task.is_pooled:
            raise UserError(
                f"pooling={','.join(self._task.pooling)!r} gives every text one vector: use "
                f"TextEncoder.encode, or choose pooling={TOKENS!r}."
            )
        return self.vectors(self._sequences(texts))

    def _sequences(self, texts: Sequence[Text]) -> list[TokenSequence]:
        return [self.maker.sequence(parts_of(text)) for text in listed(texts)]

    def vectors(self, sequences: Sequence[TokenSequence]) -> list[np.ndarray]:
        """The vectors of sequences, in their order: [layers, D], or [tokens, layers, D], each.

        Sequences of similar length share batches.
        """
        lengths = np.array([len(sequence.ids) for sequence in sequences], np.int64)
        features = self.maker.batch(sequences, self.padded(int(lengths.max(initial=0))))
        vectors: list[np.ndarray] = [np.empty(0)] * len(sequences)
        for numbers, predictions in self.batches(features):
            parts: Iterable[np.ndarray] = predictions[VECTORS]
            if not self._task.is_pooled:
                parts = np.split(predictions[VECTORS], np.cumsum(lengths[numbers])[:-1])
            for number, part in zip(numbers, parts):
                vectors[number] = part
        return vectors
