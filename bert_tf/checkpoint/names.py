"""The table of variable names: Google's and those of the same weights in PyTorch.

Google's are the names in google-research/bert, also used by NVIDIA's TensorFlow scripts and this
toolkit. Hugging Face's are those of transformers' ``BertFor...`` classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from bert_tf.config.optimizers import slot_names


class Row(NamedTuple):
    """One variable; ``{n}`` stands for the layer number.

    ``transposed``: Google stores a dense kernel as [inputs, outputs], PyTorch as [outputs, inputs].
    """

    google: str
    huggingface: str
    transposed: bool = False


def _dense(google: str, huggingface: str) -> list[Row]:
    return [
        Row(f"{google}/kernel", f"{huggingface}.weight", transposed=True),
        Row(f"{google}/bias", f"{huggingface}.bias"),
    ]


def _layer_norm(google: str, huggingface: str) -> list[Row]:
    return [
        Row(f"{google}/gamma", f"{huggingface}.weight"),
        Row(f"{google}/beta", f"{huggingface}.bias"),
    ]


def _output(google: str, huggingface: str) -> list[Row]:
    """Weights and bias of a head, which Google also stores as [outputs, inputs]."""
    return [
        Row(f"{google}output_weights", f"{huggingface}.weight"),
        Row(f"{google}output_bias", f"{huggingface}.bias"),
    ]


_LAYER = ("bert/encoder/layer_{n}", "bert.encoder.layer.{n}")
_DENSE_OF_A_LAYER = (
    "attention/self/query",
    "attention/self/key",
    "attention/self/value",
    "attention/output/dense",
    "intermediate/dense",
    "output/dense",
)

MASKED_LM = "cls/predictions/"
NEXT_SENTENCE = "cls/seq_relationship/"
SQUAD = "cls/squad/"
# google-research/bert's run_classifier.py has its head at the root.
CLASSIFICATION = ""
# There is no published TensorFlow name for tagging: NVIDIA's run_ner.py has its head at the root.
TAGGING = "cls/tagging/"

POOLER = "bert/pooler/"
HEADS = (MASKED_LM, NEXT_SENTENCE, SQUAD, TAGGING, CLASSIFICATION)

ROWS: tuple[Row, ...] = (
    *(
        Row(f"bert/embeddings/{table}", f"bert.embeddings.{table}.weight")
        for table in ("word_embeddings", "token_type_embeddings", "position_embeddings")
    ),
    *_layer_norm("bert/embeddings/LayerNorm", "bert.embeddings.LayerNorm"),
    *(
        row
        for name in _DENSE_OF_A_LAYER
        for row in _dense(f"{_LAYER[0]}/{name}", f"{_LAYER[1]}.{name.replace('/', '.')}")
    ),
    *_layer_norm(
        f"{_LAYER[0]}/attention/output/LayerNorm", f"{_LAYER[1]}.attention.output.LayerNorm"
    ),
    *_layer_norm(f"{_LAYER[0]}/output/LayerNorm", f"{_LAYER[1]}.output.LayerNorm"),
    *_dense("bert/pooler/dense", "bert.pooler.dense"),
    Row("cls/predictions/output_bias", "cls.predictions.bias"),
    *_dense("cls/predictions/transform/dense", "cls.predictions.transform.dense"),
    *_layer_norm("cls/predictions/transform/LayerNorm", "cls.predictions.transform.LayerNorm"),
    *_output(NEXT_SENTENCE, "cls.seq_relationship"),
    *_output(SQUAD, "qa_outputs"),
    *_output(TAGGING, "classifier"),
    *_output(CLASSIFICATION, "classifier"),
)

# Hugging Face's classes share "classifier"; the later row, for sequences, takes precedence.
_BY_GOOGLE = {row.google: row for row in ROWS}
_BY_HUGGINGFACE = {row.huggingface: row for row in ROWS}
_TAGGING_BY_HUGGINGFACE = {row.huggingface: row for row in ROWS if row.google.startswith(TAGGING)}

DECODER_WEIGHT = "cls.predictions.decoder.weight"
DECODER_BIAS = "cls.predictions.decoder.bias"
MASKED_LM_BIAS = "cls.predictions.bias"

_GOOGLE_LAYER = re.compile(r"(?<=^bert/encoder/layer_)\d+(?=/)")
_HUGGINGFACE_LAYER = re.compile(r"(?<=^bert\.encoder\.layer\.)\d+(?=\.)")
_OLD_LAYER_NORM = re.compile(r"(?<=LayerNorm\.)(gamma|beta)$")
_MODERN = {"gamma": "weight", "beta": "bias"}
_PARTS_OF_BERT = ("embeddings.", "encoder.", "pooler.")
# Constants that older versions saved among the weights.
_CONSTANTS = re.compile(r"bert\.embeddings\.(position_ids|token_type_ids)")

# What training saves besides the weights: in google-research/bert, NVIDIA's scripts, TensorFlow's
# optimizers, and this toolkit (whose optimizer slots are in their registry). None of it is needed
# to load weights.
_RUN_STATE = re.compile(
    r"global_step|(distillation|optimizer|loss_scale|training)/.*|.*/(Adam|Adam_1|accum|shadow)"
    r"|beta[12]_power|local_step|batch_finite|(current_)?loss_scale|(good|bad)_steps"
)
_PLACE_IN_RUN = re.compile(r"global_step|training/.*")
_OURS_ONLY = re.compile(r"(optimizer|training)/.*|loss_scale/good_updates")
_NVIDIAS_ONLY = re.compile(
    r".*/(accum|shadow)|local_step|batch_finite|(current_)?loss_scale|(good|bad)_steps"
)


def heads_of(google: Iterable[str]) -> set[str]:
    """Which of ``HEADS`` have a variable among Google's names."""
    given = set(google)
    return {
        head
        for head in HEADS
        if any(row.google in given for row in ROWS if row.google.startswith(head or "output_"))
    }


def huggingface_row(google: str) -> Row | None:
    """The row of one of Google's names with the layer filled in; None if it is not in the table."""
    return _look_up(google, _BY_GOOGLE, _GOOGLE_LAYER)


def google_row(huggingface: str, *, tagging: bool) -> Row | None:
    """Like ``huggingface_row``, for a name in ``canonical`` form.

    ``tagging``: whether ``classifier`` labels tokens rather than sequences, which its name does not
      tell.
    """
    table = {**_BY_HUGGINGFACE, **_TAGGING_BY_HUGGINGFACE} if tagging else _BY_HUGGINGFACE
    return _look_up(huggingface, table, _HUGGINGFACE_LAYER)


def _look_up(name: str, table: dict[str, Row], layer: re.Pattern[str]) -> Row | None:
    row = table.get(layer.sub("{n}", name))
    number = layer.search(name)
    if row is None or number is None:
        return row
    return Row(*(name.replace("{n}", number.group()) for name in row[:2]), row.transposed)


def canonical(name: str) -> str:
    """A name in a PyTorch checkpoint in the spelling of today's ``BertFor...`` classes.

    Normalizes the ``module.`` prefix of parallel training, a bare ``BertModel`` without ``bert.``,
    ``gamma`` and ``beta`` of early releases, and NVIDIA's ``dense_act``.
    """
    name = name[len("module.") :] if name.startswith("module.") else name
    name = name.replace(".dense_act.", ".dense.")
    name = _OLD_LAYER_NORM.sub(lambda match: _MODERN[match.group()], name)
    return f"bert.{name}" if name.startswith(_PARTS_OF_BERT) else name


def is_constant(name: str) -> bool:
    """Whether a canonical name is that of a constant, such as position indices."""
    return _CONSTANTS.fullmatch(name) is not None


def is_optimizer_state(name: str) -> bool:
    """Whether it is run state needed only for further updates, as opposed to progress counters."""
    return is_run_state(name) and _PLACE_IN_RUN.fullmatch(name) is None


def is_run_state(name: str) -> bool:
    """Whether a TensorFlow variable is optimizer state, a counter or the like."""
    if _RUN_STATE.fullmatch(name) is not None:
        return True
    variable, _, last = name.rpartition("/")
    return bool(variable) and last in slot_names()


def tensorflow_origin(names: list[str]) -> str:
    """``bert_tf``, ``nvidia`` or ``google``: the program that saves run state under these names."""
    for origin, pattern in (("bert_tf", _OURS_ONLY), ("nvidia", _NVIDIAS_ONLY)):
        if any(map(pattern.fullmatch, names)):
            return origin
    return "google"
