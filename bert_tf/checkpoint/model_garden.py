"""Reads BERT as TensorFlow 2's model garden saves it (tensorflow/models, official/nlp).

``tf.train.Checkpoint`` stores values under paths through the objects of a program, such as
``model/layer_with_weights-4/_attention_layer/_query_dense/kernel``, which differ between programs.
Its table of objects has the name of each variable as well. In the model garden that depends on the
network alone: ``transformer/layer_0/self_attention/query/kernel``, after the name of a model. These
are the names of networks/bert_encoder.py, layers/masked_lm.py and layers/cls_head.py there, which
tools/tf1_bert_checkpoint_converter_lib.py maps from Google's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from bert_tf.checkpoint import names
from bert_tf.checkpoint.arrays import ArrayFile, Entry, Shape
from bert_tf.checkpoint.tensorflow_file import OBJECT_GRAPH, TensorflowCheckpoint, damaged
from bert_tf.model.bert import WORD_EMBEDDINGS
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.util.errors import UserError

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_SLOT = "/.OPTIMIZER_SLOT/"
# Objects of a training program that are not a part of its model.
_TRAINING = re.compile(r"(optimizer|save_counter|global_step|step)(/|$)")

# Names in the model garden -> Google's; "{n}" is the number of a layer.
_LAYER, _OUR_LAYER = "transformer/layer_{n}", "bert/encoder/layer_{n}"
_DENSE = {
    **{
        f"{_LAYER}/self_attention/{name}": f"{_OUR_LAYER}/attention/self/{name}"
        for name in ("query", "key", "value")
    },
    f"{_LAYER}/self_attention/attention_output": f"{_OUR_LAYER}/attention/output/dense",
    # Until the middle of 2020, before attention was a layer of Keras.
    f"{_LAYER}/self_attention_output": f"{_OUR_LAYER}/attention/output/dense",
    f"{_LAYER}/intermediate": f"{_OUR_LAYER}/intermediate/dense",
    f"{_LAYER}/output": f"{_OUR_LAYER}/output/dense",
    "pooler_transform": "bert/pooler/dense",
    "cls/predictions/transform/dense": "cls/predictions/transform/dense",
}
_LAYER_NORM = {
    "embeddings/layer_norm": "bert/embeddings/LayerNorm",
    f"{_LAYER}/self_attention_layer_norm": f"{_OUR_LAYER}/attention/output/LayerNorm",
    f"{_LAYER}/output_layer_norm": f"{_OUR_LAYER}/output/LayerNorm",
    "cls/predictions/transform/LayerNorm": "cls/predictions/transform/LayerNorm",
}
_NAMES = {
    "word_embeddings/embeddings": WORD_EMBEDDINGS,
    "position_embedding/embeddings": "bert/embeddings/position_embeddings",
    "type_embeddings/embeddings": names.TOKEN_TYPE_EMBEDDINGS,
    **{f"{a}/{part}": f"{b}/{part}" for a, b in _DENSE.items() for part in ("kernel", "bias")},
    **{f"{a}/{part}": f"{b}/{part}" for a, b in _LAYER_NORM.items() for part in ("gamma", "beta")},
    "cls/predictions/output_bias/bias": f"{names.MASKED_LM}output_bias",
}
_HEAD_OF_PAIRS = {
    "kernel": f"{names.NEXT_SENTENCE}output_weights",
    "bias": f"{names.NEXT_SENTENCE}output_bias",
}
# BertPretrainerV2's head for the next sentence has a pooler in place of the encoder's.
_NEXT_SENTENCE = {
    **{
        f"next_sentence/pooler_dense/{part}": f"bert/pooler/dense/{part}" for part in _HEAD_OF_PAIRS
    },
    **{f"next_sentence/logits/{part}": name for part, name in _HEAD_OF_PAIRS.items()},
}
# BertPretrainer's reads the encoder's pooler; models for other tasks have heads of this name, too.
_OLD_NEXT_SENTENCE = {
    f"predictions/transform/logits/{part}": name for part, name in _HEAD_OF_PAIRS.items()
}
_NUMBER = re.compile(r"(?<=transformer/layer_)\d+(?=/)")


def open_model_garden(
    file: TensorflowCheckpoint, files: ModelDirectory
) -> tuple[ArrayFile, tuple[str, ...]]:
    """A checkpoint with objects as BERT's variables under Google's names; and a note.

    ``files`` are those next to it. Raises UserError if it holds another network, or none.
    """
    own_names = _own_names(file)
    keys = _by_google(own_names, file.path)
    others = own_names.keys() - set(keys.values())
    keys.update({key.removesuffix(_SUFFIX): key for key in sorted(others)})
    variables = _Variables(file, keys)
    heads = variables.num_heads()
    if WORD_EMBEDDINGS not in keys or heads is None:
        raise UserError(
            f"checkpoint {file.path} was written by TensorFlow 2's tf.train.Checkpoint, but has no "
            "BERT encoder under the model garden's names (tensorflow/models); give a TensorFlow 1 "
            "or Hugging Face checkpoint."
        )
    if files.config is not None and files.config.num_attention_heads != heads:
        raise UserError(
            f"checkpoint {file.path} has {heads} attention heads, but {files.config_file} has "
            f"num_attention_heads {files.config.num_attention_heads}; restore the file."
        )
    return variables, (f"written by TensorFlow 2's model garden, with {heads} attention heads",)


def _own_names(file: TensorflowCheckpoint) -> dict[str, str]:
    """The keys of the model's variables in the file -> their own names."""
    try:
        content = file.read(OBJECT_GRAPH).item()
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(content)
    except (DecodeError, TypeError, ValueError) as error:
        raise damaged(file.path, error) from error
    found = {
        value.checkpoint_key: value.full_name for node in graph.nodes for value in node.attributes
    }
    return {
        key: name
        for key, name in found.items()
        if key in file.entries and _SLOT not in key and not _TRAINING.match(key)
    }


def _by_google(own_names: Mapping[str, str], path: str) -> dict[str, str]:
    """Google's names -> the keys of the variables in the file at ``path``."""
    found = {}
    for table in (_NAMES, _NEXT_SENTENCE):
        found.update(_look_up(own_names, table, path))
    if f"{names.MASKED_LM}output_bias" in found:
        found = {**_look_up(own_names, _OLD_NEXT_SENTENCE, path), **found}
    return found


def _look_up(own_names: Mapping[str, str], table: Mapping[str, str], path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, name in own_names.items():
        number = _NUMBER.search(name)
        parts = _NUMBER.sub("{n}", name).split("/")
        # A model may have put its own name before that of the variable.
        tails = ("/".join(parts[first:]) for first in range(len(parts)))
        google = next((table[tail] for tail in tails if tail in table), None)
        if google is None:
            continue
        google = google.format(n=number.group() if number else "")
        if found.setdefault(google, key) != key:
            raise UserError(
                f"checkpoint {path} holds several models: {found[google].removesuffix(_SUFFIX)} "
                f"and {key.removesuffix(_SUFFIX)} are the same variable; save one on its own."
            )
    return found


class _Variables(ArrayFile):
    """Variables in Google's shapes: those of attention have no dimension for heads there."""

    def __init__(self, file: TensorflowCheckpoint, keys: Mapping[str, str]) -> None:
        self.path = file.path
        self.entries = {
            name: Entry(_google_shape(name, file.entries[key].shape), file.entries[key].dtype)
            for name, key in keys.items()
        }
        self._file, self._keys = file, keys

    def num_heads(self) -> int | None:
        """The number of attention heads of the first layer; None without one."""
        key = self._keys.get("bert/encoder/layer_0/attention/self/query/bias")
        shape = () if key is None else self._file.entries[key].shape
        return shape[0] if len(shape) == 2 else None

    def read(self, name: str) -> np.ndarray:
        """The values in Google's shape; UserError if they cannot be read."""
        values = self._file.read(self._keys[name])
        values = values.T if _is_transposed(name) else values
        return values.reshape(self.entries[name].shape)


def _is_transposed(name: str) -> bool:
    """Whether Google stores the variable as [outputs, inputs], unlike Keras."""
    return name == _HEAD_OF_PAIRS["kernel"]


def _google_shape(name: str, shape: Shape) -> Shape:
    """The shape without a dimension for attention heads.

    Kernels are [inputs, heads, size], or [heads, size, outputs] after attention.
    """
    if _is_transposed(name):
        return shape[::-1]
    if "/attention/self/" in name:
        first = shape[:1] if name.endswith("/kernel") else ()
        return (*first, math.prod(shape[len(first) :]))
    if name.endswith("/attention/output/dense/kernel"):
        return (math.prod(shape[:-1]), *shape[-1:])
    return shape
