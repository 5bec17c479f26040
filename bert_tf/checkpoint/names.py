"""The table of variable names: Google's names, and PyTorch's for the same weights.

Google's are the names in google-research/bert, also used by NVIDIA's TensorFlow scripts and this
toolkit. Hugging Face's are those of transformers' ``BertFor...`` classes, of its
``DistilBertFor...`` classes for a network without token types, or of its ``ElectraFor...`` classes
for the two networks of ``run_electra.py``.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bert_tf.update.optimizers import slot_names


class Row(NamedTuple):
    """One variable; ``{n}`` is the layer number.

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
    """Weights and bias of a head, which Google, too, stores as [outputs, inputs]."""
    return [
        Row(f"{google}output_weights", f"{huggingface}.weight"),
        Row(f"{google}output_bias", f"{huggingface}.bias"),
    ]


_LAYER = "bert/encoder/layer_{n}"
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
# google-research/bert's run_classifier.py has its text classification head at the root, NVIDIA's
# run_ner.py its token classification head.
CLASSES = ""

# ELECTRA's head for replaced tokens, and the masked-LM head of the generator.
DISCRIMINATOR = "cls/discriminator/"
GENERATOR = "generator/"
GENERATOR_MASKED_LM = f"{GENERATOR}{MASKED_LM}"

POOLER = "bert/pooler/"
HEADS = (MASKED_LM, NEXT_SENTENCE, SQUAD, CLASSES, DISCRIMINATOR, GENERATOR_MASKED_LM)

# Arrays of the masked-LM decoder that are copies of other variables.
DECODER_WEIGHT = "cls.predictions.decoder.weight"
DECODER_BIAS = "cls.predictions.decoder.bias"
_DISTILBERT_DECODER_WEIGHT = "vocab_projector.weight"

# DistilBERT's text classification head has a dense layer with ReLU instead of the pooler.
PRE_CLASSIFIER, CLASSIFIER = "pre_classifier.", "classifier."


def _embeddings(huggingface: str, *tables: str) -> list[Row]:
    return [
        *(Row(f"bert/embeddings/{name}", f"{huggingface}.{name}.weight") for name in tables),
        *_layer_norm("bert/embeddings/LayerNorm", f"{huggingface}.LayerNorm"),
    ]


def _encoder(huggingface: str) -> list[Row]:
    """Embeddings and layers of a network that transformers names like BERT's after the prefix."""
    ours, theirs = _LAYER, f"{huggingface}.encoder.layer.{{n}}"
    tables = ("word_embeddings", "token_type_embeddings", "position_embeddings")
    return [
        *_embeddings(f"{huggingface}.embeddings", *tables),
        *(
            row
            for name in _DENSE_OF_A_LAYER
            for row in _dense(f"{ours}/{name}", f"{theirs}.{name.replace('/', '.')}")
        ),
        *_layer_norm(f"{ours}/attention/output/LayerNorm", f"{theirs}.attention.output.LayerNorm"),
        *_layer_norm(f"{ours}/output/LayerNorm", f"{theirs}.output.LayerNorm"),
    ]


_BERT_ROWS = (
    *_encoder("bert"),
    *_dense("bert/pooler/dense", "bert.pooler.dense"),
    Row("cls/predictions/output_bias", "cls.predictions.bias"),
    *_dense("cls/predictions/transform/dense", "cls.predictions.transform.dense"),
    *_layer_norm("cls/predictions/transform/LayerNorm", "cls.predictions.transform.LayerNorm"),
    *_output(NEXT_SENTENCE, "cls.seq_relationship"),
    *_output(SQUAD, "qa_outputs"),
    *_output(CLASSES, "classifier"),
)

_DISTILBERT_LAYER = "distilbert.transformer.layer.{n}"
_DENSE_OF_A_DISTILBERT_LAYER = (
    "attention.q_lin",
    "attention.k_lin",
    "attention.v_lin",
    "attention.out_lin",
    "ffn.lin1",
    "ffn.lin2",
)

_DISTILBERT_ROWS = (
    *_embeddings("distilbert.embeddings", "word_embeddings", "position_embeddings"),
    *(
        row
        for name, theirs in zip(_DENSE_OF_A_LAYER, _DENSE_OF_A_DISTILBERT_LAYER)
        for row in _dense(f"{_LAYER}/{name}", f"{_DISTILBERT_LAYER}.{theirs}")
    ),
    *_layer_norm(f"{_LAYER}/attention/output/LayerNorm", f"{_DISTILBERT_LAYER}.sa_layer_norm"),
    *_layer_norm(f"{_LAYER}/output/LayerNorm", f"{_DISTILBERT_LAYER}.output_layer_norm"),
    Row("cls/predictions/output_bias", "vocab_projector.bias"),
    *_dense("cls/predictions/transform/dense", "vocab_transform"),
    *_layer_norm("cls/predictions/transform/LayerNorm", "vocab_layer_norm"),
    *_output(SQUAD, "qa_outputs"),
    *_output(CLASSES, "classifier"),
)

# Projects the generator's own embeddings to the width of its layers.
EMBEDDINGS_PROJECT = "bert/embeddings_project"

_ELECTRA_ROWS = (
    *_encoder("electra"),
    *_dense(EMBEDDINGS_PROJECT, "electra.embeddings_project"),
    *_dense(f"{DISCRIMINATOR}dense", "discriminator_predictions.dense"),
    *_output(DISCRIMINATOR, "discriminator_predictions.dense_prediction"),
    *_dense(f"{GENERATOR_MASKED_LM}transform/dense", "generator_predictions.dense"),
    *_layer_norm(f"{GENERATOR_MASKED_LM}transform/LayerNorm", "generator_predictions.LayerNorm"),
    Row(f"{GENERATOR_MASKED_LM}output_bias", "generator_lm_head.bias"),
)

# Missing from networks without segments.
TOKEN_TYPE_EMBEDDINGS = "bert/embeddings/token_type_embeddings"

_GOOGLE_LAYER = re.compile(r"(?<=^bert/encoder/layer_)\d+(?=/)")
_HUGGINGFACE_LAYER = re.compile(r"(?<=\.layer\.)\d+(?=\.)")
_OLD_LAYER_NORM = re.compile(r"(?<=LayerNorm\.)(gamma|beta)$")
_MODERN = {"gamma": "weight", "beta": "bias"}
# Constants that older versions of transformers saved among the weights.
_CONSTANTS = re.compile(r"(distil)?bert\.embeddings\.(position_ids|token_type_ids)")

# State that training saves in addition to weights: in google-research/bert, NVIDIA's scripts,
# TensorFlow's optimizers and this toolkit (whose slot names are in the optimizer registry). None of
# it is needed to load weights.
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
    """Those ``HEADS`` that have a variable among these Google names."""
    given = set(google)
    known = {row.google for row in (*_BERT_ROWS, *_ELECTRA_ROWS) if row.google in given}
    return {head for head in HEADS if any(name.startswith(head or "output_") for name in known)}


@dataclasses.dataclass(frozen=True, eq=False)
class Naming:
    """How one of transformers' architectures names its weights.

    Attributes:
      model_type: the architecture's name in ``config.json``.
      class_prefix: the beginning of its class names.
      parts: the beginnings of names in the bare network.
      rows: the table of names.
      copies: arrays of the masked-LM decoder -> Google's names of the variables that they copy.
    """

    model_type: str
    class_prefix: str
    parts: tuple[str, ...]
    rows: Sequence[Row]
    copies: Mapping[str, str]

    @property
    def prefix(self) -> str:
        """What precedes the bare network's names in a model with a head."""
        return f"{self.model_type}."

    @functools.cached_property
    def _by_google(self) -> dict[str, Row]:
        return {row.google: row for row in self.rows}

    @functools.cached_property
    def _by_huggingface(self) -> dict[str, Row]:
        return {row.huggingface: row for row in self.rows}

    def by_google(self, name: str) -> Row | None:
        """The row of a Google name, with the layer number filled in; None if there is none."""
        return _look_up(name, self._by_google, _GOOGLE_LAYER)

    def by_huggingface(self, name: str) -> Row | None:
        """Like :meth:`by_google`, for a name as returned by :meth:`canonical`."""
        return _look_up(name, self._by_huggingface, _HUGGINGFACE_LAYER)

    def canonical(self, name: str) -> str:
        """Converts a PyTorch checkpoint's name to the spelling of current classes with a head.

        Normalizes a bare network without :attr:`prefix`, ``gamma`` and ``beta`` of early releases,
        and NVIDIA's ``dense_act``. ``name`` has no prefix of ``formats.prefix_of``.
        """
        name = name.replace(".dense_act.", ".dense.")
        name = _OLD_LAYER_NORM.sub(lambda match: _MODERN[match.group()], name)
        return f"{self.prefix}{name}" if name.startswith(self.parts) else name


_WORDS = "bert/embeddings/word_embeddings"
BERT = Naming(
    "bert",
    "Bert",
    ("embeddings.", "encoder.", "pooler."),
    _BERT_ROWS,
    {DECODER_WEIGHT: _WORDS, DECODER_BIAS: f"{MASKED_LM}output_bias"},
)
DISTILBERT = Naming(
    "distilbert",
    "DistilBert",
    ("embeddings.", "transformer."),
    _DISTILBERT_ROWS,
    {_DISTILBERT_DECODER_WEIGHT: _WORDS},
)
# Write-only: transformers ties the output weights of its masked-LM head when it loads them.
ELECTRA = Naming("electra", "Electra", ("embeddings", "encoder."), _ELECTRA_ROWS, {})


def naming_of(stored: Iterable[str]) -> Naming:
    """Determines which naming the names in a PyTorch checkpoint follow."""
    marks = (DISTILBERT.prefix, "transformer.layer.")
    return DISTILBERT if any(name.startswith(marks) for name in stored) else BERT


def _look_up(name: str, table: dict[str, Row], layer: re.Pattern[str]) -> Row | None:
    row = table.get(layer.sub("{n}", name))
    number = layer.search(name)
    if row is None or number is None:
        return row
    google, huggingface = (name.replace("{n}", number.group()) for name in row[:2])
    return Row(google, huggingface, row.transposed)


def is_constant(name: str) -> bool:
    """Whether a canonical name belongs to a constant, such as position indices."""
    return _CONSTANTS.fullmatch(name) is not None


def is_optimizer_state(name: str) -> bool:
    """Whether this is run state needed only for further updates, unlike progress counters."""
    return is_run_state(name) and _PLACE_IN_RUN.fullmatch(name) is None


def is_run_state(name: str) -> bool:
    """Whether a TensorFlow variable is optimizer state, a counter or similar."""
    if _RUN_STATE.fullmatch(name) is not None:
        return True
    variable, _, last = name.rpartition("/")
    return bool(variable) and last in slot_names()


def tensorflow_origin(names: list[str]) -> str:
    """Guesses which program saved this run state: ``bert_tf``, ``nvidia`` or ``google``."""
    for origin, pattern in (("bert_tf", _OURS_ONLY), ("nvidia", _NVIDIAS_ONLY)):
        if any(map(pattern.fullmatch, names)):
            return origin
    return "google"
