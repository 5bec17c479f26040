"""A uniform view of all checkpoints: weights under Google's names, and accompanying files."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_tf.checkpoint import names
from bert_tf.checkpoint.arrays import ArrayFile, Shape
from bert_tf.checkpoint.pytorch_files import PytorchFile, SafetensorsFile
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.directory import (
    SAFETENSORS_SUFFIX,
    SHARD_INDEX_SUFFIXES,
    ModelDirectory,
    find_pytorch_weights,
)
from bert_tf.model_directory.record import MODEL_RECORD_NAME
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import PathLike, read_json

ORIGINS = {
    "google": "Google",
    "nvidia": "NVIDIA",
    "huggingface": "Hugging Face",
    "bert_tf": "bert_tf",
}

_GELU_FORMS = {"gelu_tanh": "GELU in its tanh form", "gelu_erf": "exact GELU"}
# A variable of an encoder layer, up to the layer number.
_LAYER = re.compile(r"(?P<scope>bert/encoder/layer_)(?P<number>\d+)(?=/)")
_SCOPE = "bert/"

# A network's word embeddings, which it has once, after the prefix that a program put before them.
_WORDS_STORED = re.compile(
    r"(?P<prefix>(?:.*?[./])??)"
    r"(?:(?:(?:distil)?bert\.)?embeddings\.word_embeddings\.weight"
    r"|(?:bert/)?embeddings/word_embeddings)"
)
# Networks of transformers with BERT's names that compute, or may compute, something else.
_OTHER_NETWORK = re.compile(
    r"(^|[./])(\w*roberta\w*|electra|ernie|data2vec_text|layoutlm|nezha)[./]"
)
_HALF = ("float16", "bfloat16")
_FLOATS = (*_HALF, "float32", "float64")


class StoredArray(NamedTuple):
    """Where a variable's values are stored."""

    file: ArrayFile
    name: str
    transposed: bool = False

    @property
    def shape(self) -> Shape:
        """The shape that the values have when they are read, in Google's orientation."""
        return self.file.entries[self.name].shape[:: -1 if self.transposed else 1]


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint of any format; values are loaded only when they are read.

    Attributes:
      path: the weights file, or a TensorFlow checkpoint without file suffixes.
      origin: a key of ``ORIGINS``, which determines the function that ``gelu`` means.
      files: configuration, vocabulary and casing stored with the weights.
      stored: every variable under Google's name, or under its name in the file if Google has none.
    """

    path: str
    origin: str
    files: ModelDirectory
    stored: Mapping[str, StoredArray]
    notes: tuple[str, ...] = ()

    @property
    def config(self) -> BertConfig:
        """The architecture, with an unambiguous GELU; UserError if no file states it."""
        if self.files.config is None:
            raise UserError(
                f"no configuration was found for {self.path}; give the model's --bert_config_file."
            )
        return self.files.config

    @property
    def shapes(self) -> dict[str, Shape]:
        """Name and shape of every variable, including run state."""
        return {name: array.shape for name, array in self.stored.items()}

    def read(self, name: str) -> np.ndarray:
        """Reads a weight as float32 in Google's orientation.

        Raises UserError if it cannot be read or has values that are not finite.
        """
        file, stored, transposed = self.stored[name]
        values = file.read_float32(stored)
        return np.ascontiguousarray(values.T) if transposed else values

    def check_finite(self, wanted: Iterable[str]) -> None:
        """Reads weights; raises UserError as :meth:`read`."""
        for name in wanted:
            self.read(name)

    def read_unchanged(self, name: str) -> np.ndarray:
        """Reads a variable of the run state in its stored dtype."""
        return self.stored[name].file.read(self.stored[name].name)

    def with_layers(self, layers: Sequence[int], *, segments: bool = True) -> Source:
        """The network with only the given encoder layers, numbered from 0, in the given order.

        Without ``segments``, it has no segment embeddings.
        """
        stored = {}
        for name, array in self.stored.items():
            if name == names.TOKEN_TYPE_EMBEDDINGS and not segments:
                continue
            layer = _LAYER.match(name)
            if layer is None:
                stored[name] = array
                continue
            for number, kept in enumerate(layers):
                if int(layer["number"]) == kept:
                    stored[f"{layer['scope']}{number}{name[layer.end() :]}"] = array
        return self.with_arrays(stored)

    def without(self, variables: Iterable[str]) -> Source:
        """The checkpoint without some of its variables."""
        left_out = set(variables)
        return self.with_arrays({n: array for n, array in self.stored.items() if n not in left_out})

    def with_arrays(self, stored: Mapping[str, StoredArray], **files: Any) -> Source:
        """The checkpoint with other variables, and with changes of the files next to it."""
        beside = dataclasses.replace(self.files, **files)
        return Source(self.path, self.origin, beside, stored, self.notes)

    def is_plain_tensorflow(self, wanted: Iterable[str]) -> bool:
        """Whether TensorFlow can read the wanted variables as float32 from ``path`` directly."""
        return all(
            file.path == self.path
            and file.entries[stored].dtype == "float32"
            and (stored, transposed, file.is_tensorflow) == (name, False, True)
            for name in wanted
            for file, stored, transposed in [self.stored[name]]
        )

    def describe(self) -> str:
        """Format and activation, for a report."""
        if self.files.config is None:
            form = "activation unknown, since there is no configuration"
        else:
            activation = self.files.config.hidden_act
            form = f"{_GELU_FORMS.get(activation, 'activation')} ({activation})"
        return f"format: {ORIGINS[self.origin]}; {form}"


def open_source(path: PathLike) -> Source:
    """Opens a checkpoint.

    Args:
      path: a model directory or a weights file: a TensorFlow checkpoint's path with or without
        suffixes, ``.safetensors``, ``.bin`` or ``.pt``, or the index of a sharded model.

    Raises UserError if the path has no checkpoint in a known format, or a truncated or damaged one,
    or one of another network.
    """
    path = Path(path)
    weights = find_pytorch_weights(path)
    files = ModelDirectory.of(path)
    if weights is not None:
        opened = _open_pytorch(weights)
    elif path.is_file() and not (
        path.suffix in (".index", ".meta")
        or ".data-" in path.name
        or path.with_name(f"{path.name}.index").is_file()
    ):
        raise UserError(
            f"{path} is not a checkpoint of a known kind; give a TensorFlow checkpoint, a "
            ".safetensors, .bin or .pt file, or a directory with one of them."
        )
    else:
        opened = _open_tensorflow(path, files)
    notes = (*files.notes, *opened.notes, *_notes_on_types(opened))
    files = _with_classes_of_head(files, opened)
    return Source(opened.path, opened.origin, files, opened.stored, notes)


class _Opened(NamedTuple):
    """A checkpoint without the files next to it; see :class:`Source`."""

    path: str
    origin: str
    stored: Mapping[str, StoredArray]
    notes: tuple[str, ...]


def _with_classes_of_head(files: ModelDirectory, opened: _Opened) -> ModelDirectory:
    """The files, classes only if there is a head; UserError if they belong to another head."""
    if names.CLASSES not in names.heads_of(opened.stored):
        return dataclasses.replace(files, classes=None)
    classes, bias = files.classes, opened.stored.get(f"{names.CLASSES}output_bias")
    if classes is not None and bias is not None and bias.shape != (classes.num_outputs,):
        raise UserError(
            f"{opened.path}: {classes.num_outputs} classes are stored with it, but its head has "
            f"{' x '.join(map(str, bias.shape))}; restore {MODEL_RECORD_NAME} or config.json there."
        )
    return files


def _open_tensorflow(path: Path, files: ModelDirectory) -> _Opened:
    # Imported here, since finding a vocabulary or configuration does not need TensorFlow.
    from bert_tf.checkpoint import tensorflow_file as tensorflow
    from bert_tf.checkpoint.directory import check_step

    checkpoint = tensorflow.TensorflowCheckpoint(tensorflow.resolve_checkpoint(path), objects=True)
    checkpoint.check_size()
    step = checkpoint.entries.get("global_step")
    if step is not None and step.shape == ():
        check_step(checkpoint.path, int(checkpoint.read("global_step")))
    file: ArrayFile = checkpoint
    notes: tuple[str, ...] = ()
    if tensorflow.OBJECT_GRAPH in checkpoint.entries:
        from bert_tf.checkpoint.model_garden import open_model_garden

        file, notes = open_model_garden(checkpoint, files)
    prefix = prefix_of(file.entries)
    stored = {name.removeprefix(prefix): StoredArray(file, name) for name in file.entries}
    notes += _notes_on_prefix(prefix)
    if _lacks_scope(stored):
        stored = {_with_scope(name): array for name, array in stored.items()}
        notes += (f"the network's variables are stored without the scope {_SCOPE}, which is added",)
    origin = names.tensorflow_origin(list(stored))
    for name in stored:
        # NVIDIA's float16 runs store the float32 master copy of a float16 weight under this name.
        stored[name] = stored.get(f"{name}/shadow", stored[name])
    return _Opened(file.path, origin, stored, notes)


def _open_pytorch(path: Path) -> _Opened:
    located = _locate(path)
    prefix = prefix_of(located)
    naming = names.naming_of(name.removeprefix(prefix) for name in located)
    origin = "nvidia" if any(".dense_act." in name for name in located) else "huggingface"
    classifies_texts = any(names.PRE_CLASSIFIER in name for name in located)
    stored: dict[str, StoredArray] = {}
    decoder: dict[str, StoredArray] = {}
    for name, file in located.items():
        canonical = naming.canonical(name.removeprefix(prefix))
        if canonical in naming.copies:
            decoder[canonical] = StoredArray(file, name)
        elif not names.is_constant(canonical):
            is_left_out = classifies_texts and canonical.startswith(names.CLASSIFIER)
            row = None if is_left_out else naming.by_huggingface(canonical)
            key = row.google if row else name
            if key in stored:
                raise UserError(
                    f"weights {path}: {stored[key].name} and {name} are the same variable; give a "
                    "file of one model."
                )
            stored[key] = StoredArray(file, name, row is not None and row.transposed)
    stored, notes = _join_decoder(stored, decoder, naming.copies)
    if classifies_texts:
        notes += (
            "warning: pre_classifier is a layer of DistilBERT's text classification head, in place "
            "of which this network has BERT's pooler, so the head is left out",
        )
    return _Opened(str(path), origin, stored, (*_notes_on_prefix(prefix), *notes))


def prefix_of(stored: Iterable[str]) -> str:
    """The prefix that a file puts before all variables of its network, such as ``_orig_mod.``.

    Variables that are not the encoder's, such as a head's, may be stored without it. It is empty if
    there is none, or if the file holds several networks or one of another kind.
    """
    known = set(stored)
    prefixes = {match["prefix"] for match in map(_WORDS_STORED.fullmatch, known) if match}
    prefix = prefixes.pop() if len(prefixes) == 1 else ""
    under = {name.removeprefix(prefix) for name in known if name.startswith(prefix)}
    others = {name for name in known if not name.startswith(prefix)}
    naming = names.naming_of(under)
    rows = [
        names.BERT.by_google(_with_scope(n)) or naming.by_huggingface(naming.canonical(n))
        for n in others
    ]
    is_split = any(row is not None and row.google.startswith("bert/") for row in rows)
    return "" if is_split or under & others or _OTHER_NETWORK.search(prefix) else prefix


def _lacks_scope(stored: Iterable[str]) -> bool:
    """Whether names without a prefix lack Google's scope ``bert/``, as if a program had cut it."""
    known = set(stored)
    return "embeddings/word_embeddings" in known and not any(
        name.startswith(_SCOPE) for name in known
    )


def _with_scope(name: str) -> str:
    """Adds ``bert/`` to a TensorFlow name of the encoder's that lacks it."""
    return f"{_SCOPE}{name}" if name.startswith(("embeddings/", "encoder/", "pooler/")) else name


def _notes_on_prefix(prefix: str) -> tuple[str, ...]:
    left_out = f"the network's variables are stored under the prefix {prefix}, which is left out"
    return (left_out,) if prefix else ()


def _locate(path: Path) -> dict[str, ArrayFile]:
    """The file that contains each array; raises UserError if a sharded model lacks a file."""
    if not path.name.endswith(SHARD_INDEX_SUFFIXES):
        file = open_weights(path)
        return dict.fromkeys(file.entries, file)
    index = read_json(path, what="index of weights")
    file_names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(file_names, dict) or not file_names:
        raise UserError(f"index of weights {path}: it has no weight_map; download it again.")
    for name, file_name in file_names.items():
        if not isinstance(file_name, str) or not os.path.basename(file_name):
            raise UserError(
                f"index of weights {path}: its weight_map has {short_repr(file_name)} for "
                f"{short_repr(name)}, which is not the name of a file; download it again."
            )
    opened: dict[str, ArrayFile] = {}
    for name in sorted(set(file_names.values())):
        shard = path.parent / os.path.basename(name)
        if not os.path.isfile(shard):  # also rejects strings that cannot be file names
            raise UserError(
                f"index of weights {path}: {short_repr(shard.name)} is missing in its directory; "
                "copy it there."
            )
        opened[name] = open_weights(shard)
    for name, file_name in file_names.items():
        if name not in opened[file_name].entries:
            raise UserError(
                f"index of weights {path}: {file_name} does not contain {short_repr(name)}; "
                "download both again."
            )
    return {name: opened[file_name] for name, file_name in file_names.items()}


def open_weights(path: Path) -> ArrayFile:
    """A file of PyTorch's arrays; UserError if it cannot be read."""
    kind = SafetensorsFile if path.suffix == SAFETENSORS_SUFFIX else PytorchFile
    try:
        return kind(path)
    except OSError as error:
        raise UserError(
            f"weights {path}: the file cannot be read ({error.strerror}); check its permissions."
        ) from error


def _join_decoder(
    stored: dict[str, StoredArray],
    decoder: dict[str, StoredArray],
    originals: Mapping[str, str],
) -> tuple[dict[str, StoredArray], tuple[str, ...]]:
    """Drops the masked-LM decoder's copies of other variables; returns the rest, and notes.

    Our decoder consists of the word embeddings and a bias. A model with a different decoder has a
    masked-LM head that ours cannot represent; its variables then keep their original names, which
    no network of ours uses. ``originals`` is ``Naming.copies``.
    """
    head = [name for name in stored if name.startswith(names.MASKED_LM)]
    if names.DECODER_BIAS in decoder:
        stored.setdefault(originals[names.DECODER_BIAS], decoder[names.DECODER_BIAS])
    untied = [
        copy
        for copy, array in decoder.items()
        if originals[copy] in stored and not _are_equal(array, stored[originals[copy]])
    ]
    if not untied:
        return stored, ()
    kept = {name: array for name, array in stored.items() if name not in head}
    kept.update({stored[name].name: stored[name] for name in head})
    kept.update({array.name: array for array in decoder.values()})
    note = (
        f"warning: {untied[0]} differs from {stored[originals[untied[0]]].name}; this network uses "
        "one for both, so the masked-LM head is left out"
    )
    return kept, (note,)


def _are_equal(first: StoredArray, second: StoredArray) -> bool:
    one_file = first.file if first.file is second.file else None
    if isinstance(one_file, PytorchFile) and one_file.share_values(first.name, second.name):
        return True
    if first.file.entries[first.name].shape != second.file.entries[second.name].shape:
        return False
    values, others = (array.file.read(array.name) for array in (first, second))
    return np.array_equal(values, others, equal_nan=True)


def _notes_on_types(opened: _Opened) -> list[str]:
    """Notes on the dtypes of the weights; raises UserError for dtypes that hold no real numbers."""
    notes = []
    types: dict[str, int] = {}
    for name, (file, stored, _) in opened.stored.items():
        dtype: Any = file.entries[stored].dtype
        if names.is_run_state(name):
            continue
        if dtype not in _FLOATS and names.BERT.by_google(name) is not None:
            raise UserError(
                f"weights {opened.path}: {stored} has type {dtype}, as in quantised models; give "
                "the original model instead."
            )
        types[dtype] = types.get(dtype, 0) + 1
    for dtype in _HALF:
        if dtype in types:
            notes.append(f"{types[dtype]} variables are stored as {dtype} and widened to float32")
    if "float64" in types:
        notes.append(f"{types['float64']} variables are stored as float64 and rounded to float32")
    return notes
