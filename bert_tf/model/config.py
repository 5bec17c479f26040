"""The architecture of a BERT network, read from Google's ``bert_config.json`` or Hugging Face's.

Both use ``"hidden_act": "gelu"`` for different functions: Google's code computes the tanh
approximation, Hugging Face's the exact function. ``gelu_tanh`` and ``gelu_erf`` are unambiguous.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_tf.util.environment import memory_bytes
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import PathLike, read_json_object

# The configuration's file name in a model directory.
CONFIG_NAME = "bert_config.json"

# The features that the network reads, each an integer tensor [B, S].
INPUTS = ("input_ids", "input_mask", "segment_ids")

ACTIVATIONS = ("gelu", "gelu_tanh", "gelu_erf", "relu", "tanh", "linear")

# transformers' hidden_act (4.57, activations.py) -> the function that it computes; "gelu_fast" and
# "gelu_accurate" are variants of the tanh approximation. Our names come last.
_HUGGINGFACE_ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
    "gelu_erf": "gelu_erf",
    "gelu_tanh": "gelu_tanh",
}

# Our settings -> transformers' for DistilBERT (4.57, configuration_distilbert.py); the others have
# the same name in both.
DISTILBERT_KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}

# transformers' defaults, where Google's differ or do not exist.
_HUGGINGFACE_DEFAULTS = {
    "bert": {"vocab_size": 30522, "type_vocab_size": 2, "hidden_act": "gelu"},
    "distilbert": {"vocab_size": 30522, "num_hidden_layers": 6, "hidden_act": "gelu"},
}

# Settings that affect training only; all others determine what the network computes.
_TRAINING_SETTINGS = frozenset(
    {"hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"}
)

# Keys that only Hugging Face configurations have.
_HUGGINGFACE_MARKS = frozenset(
    {
        "architectures",
        "dim",
        "layer_norm_eps",
        "model_type",
        "position_embedding_type",
        "transformers_version",
    }
)

# Google's multilingual and Chinese releases have these keys, which Google's code never reads.
_KEYS_WITHOUT_EFFECT = frozenset(
    {
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    }
)

# An unknown key counts as misspelt from this difflib ratio on: "hidden_dropout" (0.85) does, other
# networks' "classifier_dropout_prob" (0.71) and "num_hidden_groups" (0.76) do not.
_MISSPELT_RATIO = 0.8

# Equals layers.LAYER_NORM_EPSILON, whose module requires TensorFlow.
_OUR_EPSILON = 1e-12

# The minimum of each size whose minimum is not 1.
_LEAST_SIZES = {"type_vocab_size": 0}

# Ids and variable sizes in a checkpoint are 32-bit; a graph has operations for each layer.
_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 10_000


class ConfigDifferences(NamedTuple):
    """The differences between two configurations, name -> ``name before -> after``.

    Attributes:
      function: settings that determine what the network computes.
      training: dropout rates and the range of initial weights.
    """

    function: dict[str, str]
    training: dict[str, str]


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes, activation, dropout rates and initialisation; keys and defaults are Google's.

    ``hidden_act`` is one of ``ACTIVATIONS``; ``gelu`` means the tanh approximation of Google's code
    (same as ``gelu_tanh``), ``gelu_erf`` the exact function. With ``type_vocab_size`` 0 the network
    has no segment embeddings and ignores segment ids, as DistilBERT does. Raises UserError for
    values from which no network can be built.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        problem = _find_problem(self)
        if problem:
            raise UserError(f"model configuration: {problem}.")

    def with_explicit_gelu(self) -> BertConfig:
        """The same configuration, with ``gelu`` written unambiguously as ``gelu_tanh``."""
        if self.hidden_act != "gelu":
            return self
        return dataclasses.replace(self, hidden_act="gelu_tanh")

    def check_length(
        self,
        length: int,
        given: str,
        *,
        whose: str = "the model's",
        advice: str = "lower it or use another model",
    ) -> None:
        """Raises UserError if a sequence has more tokens than the network has positions.

        Args:
          length: number of tokens in the sequence.
          given: beginning of the message, such as ``--max_seq_length=600 is``.
          whose: the network, as named in the message.
          advice: end of the message.
        """
        positions = self.max_position_embeddings
        if length > positions:
            raise UserError(
                f"{given} more than {whose} max_position_embeddings={positions}; {advice}."
            )

    def differences(self, other: BertConfig) -> ConfigDifferences:
        """How ``other`` differs from this one; both names of the tanh approximation are equal."""
        before, now = (config.with_explicit_gelu().to_dict() for config in (self, other))
        found = {name: f"{name} {before[name]} -> {now[name]}" for name in now}
        changed = [name for name in found if before[name] != now[name]]
        return ConfigDifferences(
            function={name: found[name] for name in changed if name not in _TRAINING_SETTINGS},
            training={name: found[name] for name in changed if name in _TRAINING_SETTINGS},
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, source: str = "dictionary") -> BertConfig:
        """Builds a config from JSON values; ignores keys of other programs.

        Raises a UserError that names ``source`` and the key for an invalid value, and for an
        unknown key that looks like a misspelt known one.
        """
        for key in _unknown_keys(values):
            meant = _meant_key(key)
            if meant:
                raise UserError(
                    f"model configuration {source}: unknown key {short_repr(key)}; did you mean "
                    f"{meant!r}?"
                )
        if "vocab_size" not in values:
            raise UserError(f"model configuration {source}: the key 'vocab_size' is missing.")
        return cls._from_known(values, source)

    @classmethod
    def from_huggingface_dict(cls, values: dict[str, Any], *, source: str) -> BertConfig:
        """Builds a config from the values of a Hugging Face ``config.json``.

        Ignores keys that do not describe the network. Raises a UserError that names ``source`` if
        the network is neither BERT nor DistilBERT, or is an unsupported variant.
        """
        problem = _find_foreign(values)
        if problem:
            raise UserError(f"model configuration {source}: {problem}.")
        model_type = _model_type(values)
        keys = _huggingface_keys(model_type)
        settings = {name: values[key] for name, key in keys.items() if key in values}
        settings = {**_HUGGINGFACE_DEFAULTS[model_type], **settings}
        settings["hidden_act"] = _HUGGINGFACE_ACTIVATIONS[settings["hidden_act"]]
        if model_type == "distilbert":
            settings["type_vocab_size"] = 0
        return cls._from_known(settings, source, keys=keys)

    @classmethod
    def _from_known(
        cls, values: dict[str, Any], source: str, *, keys: Mapping[str, str] | None = None
    ) -> BertConfig:
        """Builds a config from the settings in ``values``; ``keys`` maps them to names there."""
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            config = cls(**{key: value for key, value in values.items() if key in known})
            _check_fits_memory(config)
            return config
        except UserError as error:
            detail = str(error).partition(": ")[2]
            for name, key in (keys or {}).items():
                detail = detail.replace(name, key)
            raise UserError(f"model configuration {source}: {detail}") from None

    @classmethod
    def from_json_file(cls, path: PathLike) -> BertConfig:
        """Like :func:`read_config`, without the notes."""
        return read_config(path)[0]

    def to_dict(self) -> dict[str, Any]:
        """The settings under Google's JSON keys."""
        return dataclasses.asdict(self)


def read_config_file(path: PathLike) -> dict[str, Any]:
    """The JSON object in a file; raises UserError if the file does not contain one."""
    return read_json_object(path, what="model configuration")


def is_huggingface(values: dict[str, Any]) -> bool:
    """Whether the settings contain a key that only Hugging Face uses."""
    return not _HUGGINGFACE_MARKS.isdisjoint(values)


def config_notes(values: dict[str, Any], *, source: PathLike) -> list[str]:
    """Warnings about settings in a configuration file that this network ignores."""
    if is_huggingface(values):
        epsilon = values.get("layer_norm_eps", _OUR_EPSILON)
        # transformers' DistilBERT always uses our epsilon.
        if epsilon == _OUR_EPSILON or _model_type(values) == "distilbert":
            return []
        return [
            f"warning: {source} sets layer_norm_eps {short_repr(epsilon)}, but this network always "
            f"uses {_OUR_EPSILON}; outputs differ slightly"
        ]
    unknown = ", ".join(_unknown_keys(values))
    return [f"warning: {source} has keys that this network ignores: {unknown}"] if unknown else []


def read_config(path: PathLike) -> tuple[BertConfig, list[str]]:
    """Reads Google's or our ``bert_config.json``, or a Hugging Face ``config.json``.

    A Hugging Face file is recognised by its keys; its ``gelu`` becomes ``gelu_erf``. Raises
    UserError for an unusable file.

    Returns: the configuration, and the file's :func:`config_notes`.
    """
    values = read_config_file(path)
    read = BertConfig.from_huggingface_dict if is_huggingface(values) else BertConfig.from_dict
    return read(values, source=str(path)), config_notes(values, source=path)


def _unknown_keys(values: dict[str, Any]) -> list[str]:
    known = {field.name for field in dataclasses.fields(BertConfig)} | _KEYS_WITHOUT_EFFECT
    return [key for key in values if key not in known]


def _meant_key(key: str) -> str:
    """The known key that an unknown one was most likely meant to be, or the empty string.

    It has a similar spelling, or contains all words of ``key`` in order: "num_layers" must mean
    "num_hidden_layers".
    """
    known = [field.name for field in dataclasses.fields(BertConfig)]
    spelt = key.lower().replace("-", "_")
    near = difflib.get_close_matches(spelt, known, n=1, cutoff=_MISSPELT_RATIO)
    words = spelt.split("_")
    longer = [name for name in known if len(words) > 1 and _is_within(words, name.split("_"))]
    return next(iter(near + longer), "")


def _is_within(words: list[str], others: list[str]) -> bool:
    """Whether ``words`` occur among ``others``, in order."""
    remaining = iter(others)
    return all(word in remaining for word in words)


def _model_type(values: dict[str, Any]) -> Any:
    """The network type in a Hugging Face configuration; the oldest do not state it."""
    return values.get("model_type", "distilbert" if "dim" in values else "bert")


def _huggingface_keys(model_type: str) -> dict[str, str]:
    """Our setting -> its key in a Hugging Face configuration."""
    renamed = DISTILBERT_KEYS if model_type == "distilbert" else {}
    return {f.name: renamed.get(f.name, f.name) for f in dataclasses.fields(BertConfig)}


def _find_foreign(values: dict[str, Any]) -> str:
    """What a Hugging Face configuration requires and our network lacks, or the empty string."""
    model_type = _model_type(values)
    if model_type not in [*_HUGGINGFACE_DEFAULTS]:
        return (
            f"model_type {short_repr(model_type)} is not supported; give a model of type 'bert' or "
            "'distilbert'"
        )
    positions = values.get("position_embedding_type", "absolute")
    if positions != "absolute":
        return (
            f"position_embedding_type {short_repr(positions)} is not supported, only 'absolute' is"
        )
    for key in ("is_decoder", "add_cross_attention"):
        if values.get(key):
            return f"{key} is set; only encoders are supported"
    key = _huggingface_keys(model_type)["hidden_act"]
    activation = values.get(key, "gelu")
    if not isinstance(activation, str) or activation not in _HUGGINGFACE_ACTIVATIONS:
        choices = ", ".join(_HUGGINGFACE_ACTIVATIONS)
        return f"{key} {short_repr(activation)} is not supported, only {choices} are"
    return ""


def _find_problem(config: BertConfig) -> str:
    """What is wrong with a configuration, without a full stop; empty if it is valid."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        given = short_repr(value)
        least = _LEAST_SIZES.get(field.name, 1)
        if field.type == "int" and not (_is_number(value, int) and value >= least):
            kind = "positive whole number" if least else "whole number of at least 0"
            return f"{field.name} must be a {kind}, not {given}"
        most = _MAX_LAYERS if field.name == "num_hidden_layers" else _MAX_SIZE
        if field.type == "int" and value > most:
            return f"{field.name} must not be more than {most}, but is {given}"
        if field.name.endswith("dropout_prob") and not (_is_number(value) and 0 <= value < 1):
            return f"{field.name} must be a number in [0, 1), not {given}"
    deviation = config.initializer_range
    if not (_is_number(deviation) and 0 < deviation < math.inf):
        return f"initializer_range must be a positive number, not {short_repr(deviation)}"
    if config.hidden_act not in ACTIVATIONS:
        choices = ", ".join(ACTIVATIONS)
        return f"hidden_act {short_repr(config.hidden_act)} is unknown; choose one of {choices}"
    if config.hidden_size % config.num_attention_heads:
        return (
            f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads "
            f"{config.num_attention_heads}"
        )
    return ""


def _check_fits_memory(config: BertConfig) -> None:
    """Raises UserError if the weights alone exceed this machine's memory."""
    width, inner = config.hidden_size, config.intermediate_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    layer = 4 * width * width + 2 * width * inner
    needed = 4 * (rows * width + config.num_hidden_layers * layer)
    if needed > memory_bytes():
        fields = [f.name for f in dataclasses.fields(config) if f.type == "int"]
        sizes = ", ".join(f"{name} {getattr(config, name)}" for name in fields)
        raise UserError(
            f"model configuration: its weights take {needed / 2**30:,.0f} GiB, and this machine "
            f"has {memory_bytes() / 2**30:,.0f} GiB of memory; use a "
            f"machine with more, or reduce the sizes of a new network ({sizes})."
        )


def _is_number(value: object, kind: Any = (int, float)) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
