"""What a directory of sentence-transformers says next to its network: how texts become vectors.

``modules.json`` lists modules, each with the directory of its files: the network, the pooling of
its tokens, dense layers, and the scaling to unit length. ``sentence_bert_config.json`` has the
length and casing of texts, ``config_sentence_transformers.json`` what precedes them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.checkpoint.formats import open_weights
from bert_tf.model_directory.directory import HUGGINGFACE_CONFIG_NAME
from bert_tf.text.tokenizer import TOKENIZER_CONFIG_NAME
from bert_tf.util.digest import digest_of
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import PathLike, read_json, read_json_object, write_json

MODULES_NAME = "modules.json"
TEXTS_NAME = "sentence_bert_config.json"
PROMPTS_NAME = "config_sentence_transformers.json"
_SETTINGS_NAME = HUGGINGFACE_CONFIG_NAME  # of a module, in its directory

# sentence_transformers/models/Pooling.py of version 5: its keys, in the order of their vectors.
_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# What version 6 calls otherwise.
_OTHER_NAMES = {"mean_sqrt_len_tokens": "mean_sqrt_len"}

_WHAT = "description of vectors"
_KINDS = "Transformer", "Pooling", "Dense", "Normalize"
_TASK = "feature-extraction"
_ORDER = re.compile("Transformer Pooling( Dense)*( Normalize)?")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# torch's names -> those of ``model.config.ACTIVATIONS``.
_ACTIVATIONS = {"Tanh": "tanh", "Identity": "linear", "ReLU": "relu", "GELU": "gelu_erf"}
# No text has as many tokens; tokenizers without a limit have 1e30.
_NO_LIMIT = 1 << 30


@dataclasses.dataclass(frozen=True, eq=False)
class DenseLayer:
    """A dense layer on pooled vectors.

    Attributes:
      kernel: float32 [inputs, outputs].
      bias: float32 [outputs].
      activation: one of ``model.config.ACTIVATIONS``.
      settings: the content of its file of settings.
    """

    kernel: np.ndarray
    bias: np.ndarray
    activation: str
    settings: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """A digest of what it computes."""
        content = self.activation.encode() + self.kernel.tobytes() + self.bias.tobytes()
        return digest_of(content)


@dataclasses.dataclass(frozen=True)
class SentenceModules:
    """How texts become vectors.

    Attributes:
      pooling: how tokens become vectors, which follow each other; values of ``_POOLING_KEYS``.
      pools_prompt: whether the tokens of a prompt are pooled, too.
      dense: the layers on pooled vectors.
      normalize: whether these are scaled to unit length in the end.
      max_seq_length: the most tokens of a text; None for the network's positions.
      lower_case: whether texts are lower-cased before they are tokenized.
      prompts: name -> text that may precede texts.
      default_prompt: the name of the one that always does; "" for none.
      contents: the contents of files, by their names in a directory that :meth:`write` makes.
    """

    path: Path
    pooling: tuple[str, ...]
    pools_prompt: bool = True
    dense: tuple[DenseLayer, ...] = ()
    normalize: bool = False
    max_seq_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""
    contents: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def length_within(self, positions: int) -> int:
        """The most tokens of a text for a network with so many positions."""
        return min(positions, self.max_seq_length or positions)

    def prompt_of(self, name: str | None) -> str:
        """The prompt of a name, or the default one for None; "" for none.

        Raises UserError if there is no such prompt.
        """
        name = self.default_prompt if name is None else name
        if name and name not in self.prompts:
            names = ", ".join(self.prompts) or "none"
            raise UserError(f"--prompt_name={name}: the prompts next to the network are: {names}.")
        return self.prompts.get(name, "")

    def write(self, directory: Path) -> None:
        """Writes the same, for a network in ``directory`` itself."""
        rows = []
        kinds = ["Transformer", "Pooling", *["Dense"] * len(self.dense)]
        for number, kind in enumerate([*kinds, *["Normalize"] * self.normalize]):
            path = f"{number}_{kind}" if number else ""
            row = {"idx": number, "name": str(number), "path": path}
            rows.append({**row, "type": f"sentence_transformers.models.{kind}"})
            if path:
                (directory / path).mkdir()
        write_json(directory / MODULES_NAME, rows)
        for number, layer in enumerate(self.dense, start=2):
            _write_dense(directory / f"{number}_Dense", layer)
        for name, content in self.contents.items():
            write_json(directory / name, content)


def read_sentence_modules(path: PathLike) -> SentenceModules | None:
    """What is said next to the network at ``path``, its directory or a file in it; None if nothing.

    Raises UserError if a file is malformed, or for a module that is not computed here.
    """
    network = Path(path) if Path(path).is_dir() else Path(path).parent
    listed = _modules_of(network)
    if listed is None:
        return None
    file, modules = listed
    pooling_file = modules[1][1] / _SETTINGS_NAME
    pooling = read_json_object(pooling_file, what=_WHAT)
    texts = _optional(network / TEXTS_NAME)
    prompts = _optional(file.parent / PROMPTS_NAME)
    names = _poolings(pooling, pooling_file)
    pools_prompt = pooling.get("include_prompt", True)
    if not pools_prompt and "cls" in names:
        raise UserError(
            f"{pooling_file}: include_prompt is false, and the pooling has the first token, which "
            "versions of sentence-transformers choose differently; set include_prompt to true."
        )
    length = _length(texts, network)
    task = texts.get("transformer_task", _TASK)
    if task != _TASK:
        raise UserError(
            f"{network / TEXTS_NAME}: transformer_task {short_repr(task)} is not computed here."
        )
    return SentenceModules(
        path=file,
        pooling=names,
        pools_prompt=bool(pools_prompt),
        dense=tuple(_read_dense(directory) for kind, directory in modules if kind == "Dense"),
        normalize=modules[-1][0] == "Normalize",
        max_seq_length=length,
        lower_case=texts.get("do_lower_case") is True,
        **_prompts(prompts, file.parent / PROMPTS_NAME),
        contents={
            f"1_Pooling/{_SETTINGS_NAME}": pooling,
            TEXTS_NAME: {**texts, "max_seq_length": length},
            **({PROMPTS_NAME: prompts} if prompts else {}),
        },
    )


def _modules_of(network: Path) -> tuple[Path, list[tuple[str, Path]]] | None:
    """The ``modules.json`` that names the network's directory; None if none does.

    With the kind of each module, and the directory of its files. Raises UserError for an unknown
    kind, or an order that is not computed here.
    """
    for directory in (network, network.absolute().parent):
        file = directory / MODULES_NAME
        rows = _rows(file) if file.is_file() else []
        if rows and (directory / rows[0][1]).resolve() == network.resolve():
            break
    else:
        return None
    modules = []
    for kind, path in rows:
        package, _, name = kind.rpartition(".")
        if name not in _KINDS or not f"{package}.".startswith("sentence_transformers."):
            raise UserError(
                f"{file}: the module {short_repr(path)} has the type {short_repr(kind)}, which is "
                f"not known here; {', '.join(_KINDS)} of sentence-transformers are."
            )
        modules.append((name, file.parent / path))
    order = " ".join(kind for kind, _ in modules)
    if not _ORDER.fullmatch(order):
        raise UserError(
            f"{file}: its modules are {order.replace(' ', ', ')}; only a Transformer, a Pooling, "
            "Dense layers and a Normalize are computed, in this order."
        )
    return file, modules


def _rows(file: Path) -> list[tuple[str, str]]:
    """The type and the directory of each module."""
    content = read_json(file, what=_WHAT)
    rows = content if isinstance(content, list) else []
    texts: list[Any] = [(r.get("type"), r.get("path", "")) for r in rows if isinstance(r, dict)]
    are_texts = all(isinstance(text, str) for row in texts for text in row)
    if not rows or len(texts) < len(rows) or not are_texts:
        raise UserError(f"{file}: it must be a list of modules with a type each; restore the file.")
    for _, path in texts:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise UserError(f"{file}: {short_repr(path)} is not a directory in its own.")
    return texts


def _optional(file: Path) -> dict[str, Any]:
    return read_json_object(file, what=_WHAT) if file.is_file() else {}


def _poolings(settings: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """Version 6 of sentence-transformers has a name or several, earlier ones a key for each."""
    given = settings.get("pooling_mode")
    if given is None:
        keys = [key for key in settings if key.startswith("pooling_mode_") and settings[key]]
        names = [name for key, name in _POOLING_KEYS.items() if key in keys]
        names = [*names, *(key for key in keys if key not in _POOLING_KEYS)] or ["mean"]
    else:
        given = given if isinstance(given, list) and given else [given]
        names = [_OTHER_NAMES.get(str(name), str(name)) for name in given]
    for name in names:
        if name not in _POOLING_KEYS.values():
            raise UserError(f"{file}: the pooling {short_repr(name)} is not known here.")
    return tuple(names)


def _prompts(settings: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The prompts that are not empty, and the name of the default one."""
    stored, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    texts = stored.values() if isinstance(stored, dict) else [stored]
    if not all(isinstance(text, (str, type(None))) for text in texts):
        raise UserError(f"{file}: prompts must be texts by their names; restore the file.")
    if default is not None and (not isinstance(default, str) or default not in stored):
        raise UserError(
            f"{file}: default_prompt_name is {short_repr(default)}, which is not a prompt there; "
            "restore the file."
        )
    prompts = {name: text for name, text in stored.items() if text}
    return {"prompts": prompts, "default_prompt": default if default in prompts else ""}


def _length(texts: Mapping[str, Any], network: Path) -> int | None:
    """The most tokens of a text: of its own file, or else the tokenizer's."""
    files = {TEXTS_NAME: texts.get("max_seq_length")}
    if files[TEXTS_NAME] is None:
        tokenizer = _optional(network / TOKENIZER_CONFIG_NAME).get("model_max_length")
        files = {TOKENIZER_CONFIG_NAME: tokenizer}
    [(name, length)] = files.items()
    if length is None or (isinstance(length, (int, float)) and length > _NO_LIMIT):
        return None
    if type(length) is not int or length < 3:
        raise UserError(
            f"{network / name}: {short_repr(length)} is not a length of texts; restore the file."
        )
    return length


def _read_dense(directory: Path) -> DenseLayer:
    file = directory / _SETTINGS_NAME
    settings = read_json_object(file, what=_WHAT)
    activation = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    name = str(activation).rpartition(".")[2]
    if name not in _ACTIVATIONS or not str(activation).startswith("torch.nn.modules."):
        raise UserError(
            f"{file}: the activation {short_repr(activation)} is not known here; "
            f"{', '.join(_ACTIVATIONS)} of torch are."
        )
    others = {"use_residual": False, "module_input_name": "sentence_embedding"}
    others["module_output_name"] = others["module_input_name"]
    for key, usual in others.items():
        if settings.get(key) not in (None, usual):
            raise UserError(f"{file}: {key} {short_repr(settings[key])} is not computed here.")
    weights = next(filter(Path.is_file, map(directory.joinpath, _WEIGHTS)), None)
    if weights is None:
        raise UserError(f"{directory} has no {' or '.join(_WEIGHTS)}; copy it there.")
    stored = open_weights(weights)
    shape = settings.get("out_features"), settings.get("in_features")
    wanted = {"linear.weight": shape, "linear.bias": shape[:1]}
    if not settings.get("bias", True):
        del wanted["linear.bias"]
    if {key: entry.shape for key, entry in stored.entries.items()} != wanted:
        raise UserError(f"weights {weights}: they are not the layer of {file}; copy both again.")
    kernel = np.ascontiguousarray(stored.read_float32("linear.weight").T)
    bias = np.zeros(kernel.shape[1], np.float32)
    if "linear.bias" in wanted:
        bias = stored.read_float32("linear.bias")
    return DenseLayer(kernel, bias, _ACTIVATIONS[name], settings)


def _write_dense(directory: Path, layer: DenseLayer) -> None:
    from safetensors.numpy import save_file

    arrays = {"linear.weight": np.ascontiguousarray(layer.kernel.T)}
    if layer.settings.get("bias", True):
        arrays["linear.bias"] = layer.bias
    save_file(arrays, directory / _WEIGHTS[0], metadata={"format": "pt"})
    write_json(directory / _SETTINGS_NAME, layer.settings)
