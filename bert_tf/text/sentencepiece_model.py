"""The content of a SentencePiece model file, which its library does not show.

The fields are those of ``sentencepiece_model.proto`` (google/sentencepiece). The library's own
generated module is not used, since it needs a newer protobuf than TensorFlow 2.15 has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from bert_tf.util.errors import UserError
from bert_tf.util.messages import message_class

# The types of pieces.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
# Model types.
UNIGRAM = 1
# The name of no normalization.
IDENTITY = "identity"
MODEL_TYPES = {UNIGRAM: "unigram", 2: "BPE", 3: "word", 4: "character"}

# Enumerations are read as numbers.
_MESSAGES = {
    "Piece": """
        optional string piece = 1;
        optional float score = 2;
        optional int32 type = 3 [default = 1];
    """,
    "TrainerSpec": """
        optional int32 model_type = 3 [default = 1];
        optional bool treat_whitespace_as_suffix = 24;
        optional bool byte_fallback = 35;
        optional int32 unk_id = 40;
    """,
    "NormalizerSpec": """
        optional string name = 1;
        optional bool add_dummy_prefix = 3 [default = true];
        optional bool remove_extra_whitespaces = 4 [default = true];
        optional bool escape_whitespaces = 5 [default = true];
    """,
    "Model": """
        repeated Piece pieces = 1;
        optional TrainerSpec trainer_spec = 2;
        optional NormalizerSpec normalizer_spec = 3;
    """,
}
_MODEL = message_class("Model", _MESSAGES, syntax="proto2")


def read_sentencepiece_model(path: Path) -> Any:
    """The model as a protocol buffer: ``pieces``, ``trainer_spec`` and ``normalizer_spec``.

    Raises UserError if the file is not a SentencePiece model.
    """
    try:
        return _MODEL.FromString(path.read_bytes())
    except DecodeError as error:
        raise UserError(f"{path} is not a SentencePiece model; give a .model file.") from error
