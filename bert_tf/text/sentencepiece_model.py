"""The content of a SentencePiece model file, which its library does not show.

The fields are those of ``sentencepiece_model.proto`` (google/sentencepiece). The library's own
generated module is not used, since it needs a newer protobuf than TensorFlow 2.15 has.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from bert_tf.util.errors import UserError

# The types of pieces.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
# Model types.
UNIGRAM = 1
# The name of no normalization.
IDENTITY = "identity"
MODEL_TYPES = {UNIGRAM: "unigram", 2: "BPE", 3: "word", 4: "character"}

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "bert_tf.sentencepiece"


class _Spec(NamedTuple):
    """Number and type of a field; a default other than the type's; the name of a message type."""

    number: int
    type: int
    default: str = ""
    message: str = ""
    repeated: bool = False


# Enumerations are read as numbers.
_MESSAGES: Mapping[str, Mapping[str, _Spec]] = {
    "Piece": {
        "piece": _Spec(1, _Field.TYPE_STRING),
        "score": _Spec(2, _Field.TYPE_FLOAT),
        "type": _Spec(3, _Field.TYPE_INT32, "1"),
    },
    "TrainerSpec": {
        "model_type": _Spec(3, _Field.TYPE_INT32, "1"),
        "treat_whitespace_as_suffix": _Spec(24, _Field.TYPE_BOOL),
        "byte_fallback": _Spec(35, _Field.TYPE_BOOL),
        "unk_id": _Spec(40, _Field.TYPE_INT32),
    },
    "NormalizerSpec": {
        "name": _Spec(1, _Field.TYPE_STRING),
        "add_dummy_prefix": _Spec(3, _Field.TYPE_BOOL, "true"),
        "remove_extra_whitespaces": _Spec(4, _Field.TYPE_BOOL, "true"),
        "escape_whitespaces": _Spec(5, _Field.TYPE_BOOL, "true"),
    },
    "Model": {
        "pieces": _Spec(1, _Field.TYPE_MESSAGE, message="Piece", repeated=True),
        "trainer_spec": _Spec(2, _Field.TYPE_MESSAGE, message="TrainerSpec"),
        "normalizer_spec": _Spec(3, _Field.TYPE_MESSAGE, message="NormalizerSpec"),
    },
}


def read_sentencepiece_model(path: Path) -> Any:
    """The model as a protocol buffer: ``pieces``, ``trainer_spec`` and ``normalizer_spec``.

    Raises UserError if the file is not a SentencePiece model.
    """
    try:
        return _model_class().FromString(path.read_bytes())
    except DecodeError as error:
        raise UserError(f"{path} is not a SentencePiece model; give a .model file.") from error


@functools.cache
def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="bert_tf_sentencepiece.proto", package=_PACKAGE, syntax="proto2"
    )
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, spec in fields.items():
            field = message.field.add(name=name, number=spec.number, type=spec.type)
            field.label = _Field.LABEL_REPEATED if spec.repeated else _Field.LABEL_OPTIONAL
            if spec.default:
                field.default_value = spec.default
            if spec.message:
                field.type_name = f".{_PACKAGE}.{spec.message}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Model"))
