"""The architecture of a BERT network, read from Google's ``bert_config.json`` or Hugging Face's.

Both write ``"hidden_act": "gelu"`` and mean different functions: Google's code computes the tanh
form, Hugging Face's the exact one. ``gelu_tanh`` and ``gelu_erf`` say which.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import reprlib
from typing import Any, NamedTuple

from bert_tf.environment import memory_bytes
from bert_tf.errors import UserError
from bert_tf.files import PathLike, read_json_object

# The file of a model directory that holds a configuration.
CONFIG_NAME = "bert_config.json"

# The features that the network reads, [B, S] integers each.
INPUTS = ("input_ids", "input_mask", "segment_ids")

ACTIVATIONS = ("gelu", "gelu_tanh", "gelu_erf", "relu", "tanh", "linear")

# hidden_act of transformers (4.57, activations.py) by what it computes; "gelu_fast" and
# "gelu_accurate" are other spellings of the tanh form. Last our own names.
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

# What matters to training alone; all else decides what a network computes.
_OF_TRAINING = frozenset(
    {"hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"}
)

# Keys that only Hugging Face's configurations have.
_HUGGINGFACE_MARKS = frozenset(
    {
        "architectures",
        "layer_norm_eps",
        "model_type",
        "position_embedding_type",
        "transformers_version",
    }
)

# Google's multilingual and Chinese releases carry these keys; no code of theirs ever read them.
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

# A key as near to a known one as this (difflib's ratio) is taken for a misspelt one: it keeps
# "hidden_dropout" (0.85) and lets "classifier_dropout_prob" (0.71) and "num_hidden_groups" (0.76)
# of other networks pass.
_MISSPELT = 0.8

# layers.LAYER_NORM_EPSILON; that module needs TensorFlow.
_OUR_EPSILON = 1e-12

# Ids and the sizes of a checkpoint's variables have 32 bits; a graph has operations for each layer.
_MOST = 2**31 - 1
_MOST_LAYERS = 10_000


class ConfigDifferences(NamedTuple):
    """What differs between two configurations, name -> ``name before -> after``.

    Attributes:
      function: what the network computes.
      training: dropout rates and the range of initial weights.
    """

    function: dict[str, str]
    training: dict[str, str]


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes, activation, dropout rates and initialisation; keys and defaults are Google's.

    ``hidden_act`` is one of ``ACTIVATIONS``; ``gelu`` means the tanh form that Google's code
    computes (the same as ``gelu_tanh``), ``gelu_erf`` the exact one. Raises UserError for a value
    that no network can be built from.
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

    def __post_init__(self):
        problem = _find_problem(self)
        if problem:
            raise UserError(f"model configuration: {problem}.")

    @property
    def size_per_head(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def with_explicit_gelu(self) -> BertConfig:
        """The same network; ``gelu`` is written ``gelu_tanh``, which nobody can misread."""
        if self.hidden_act != "gelu":
            return self
        return dataclasses.replace(self, hidden_act="gelu_tanh")

    def differences(self, other: BertConfig) -> ConfigDifferences:
        """In what ``other`` differs from this network, the two names of the tanh form apart."""
        before, now = (config.with_explicit_gelu().to_dict() for config in (self, other))
        found = {name: f"{name} {before[name]} -> {now[name]}" for name in now}
        changed = [name for name in found if before[name] != now[name]]
        return ConfigDifferences(
            function={name: found[name] for name in changed if name not in _OF_TRAINING},
            training={name: found[name] for name in changed if name in _OF_TRAINING},
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, source: str = "dictionary") -> BertConfig:
        """Builds a config from JSON values; keys of other programs are passed over.

        Raises UserError that names ``source`` and the key for a value that cannot be, and for an
        unknown key that looks like a known one that was misspelt.
        """
        for key in _unknown_keys(values):
            meant = _meant_key(key)
            if meant:
                raise UserError(
                    f"model configuration {source}: unknown key {key!r}; did you mean {meant!r}?"
                )
        if "vocab_size" not in values:
            raise UserError(f"model configuration {source}: the key 'vocab_size' is missing.")
        return cls._from_known(values, source)

    @classmethod
    def from_huggingface_dict(cls, values: dict[str, Any], *, source: str) -> BertConfig:
        """Builds a config from the values of a Hugging Face ``config.json``.

        Keys that say nothing about the network are passed over. Raises UserError that names
        ``source`` when the network is another than BERT or one of its variants.
        """
        problem = _find_foreign(values)
        if problem:
            raise UserError(f"model configuration {source}: {problem}.")
        # What transformers takes for an absent key, where Google's default is another or none.
        defaults = {"vocab_size": 30522, "type_vocab_size": 2, "hidden_act": "gelu"}
        settings = {**defaults, **values}
        settings["hidden_act"] = _HUGGINGFACE_ACTIVATIONS[settings["hidden_act"]]
        return cls._from_known(settings, source)

    @classmethod
    def _from_known(cls, values: dict[str, Any], source: str) -> BertConfig:
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            config = cls(**{key: value for key, value in values.items() if key in known})
            _refuse_what_has_no_room(config)
            return config
        except UserError as error:
            detail = str(error).partition(": ")[2]
            raise UserError(f"model configuration {source}: {detail}") from None

    @classmethod
    def from_json_file(cls, path: PathLike) -> BertConfig:
        """As :func:`read_config`, without the notes."""
        return read_config(path)[0]

    def to_dict(self) -> dict[str, Any]:
        """The settings under Google's JSON keys."""
        return dataclasses.asdict(self)


def read_config_file(path: PathLike) -> dict[str, Any]:
    """The JSON object in a file; raises UserError when it holds none."""
    return read_json_object(path, what="model configuration")


def is_huggingface(values: dict[str, Any]) -> bool:
    """Whether the settings have a key that only Hugging Face writes."""
    return not _HUGGINGFACE_MARKS.isdisjoint(values)


def config_notes(values: dict[str, Any], *, source: PathLike) -> list[str]:
    """Sentences on what a configuration file says and this network does not follow."""
    if is_huggingface(values):
        epsilon = values.get("layer_norm_eps", _OUR_EPSILON)
        if epsilon == _OUR_EPSILON:
            return []
        return [
            f"warning: {source} says layer_norm_eps {epsilon!r}, but this network always uses "
            f"{_OUR_EPSILON}; outputs differ slightly"
        ]
    unknown = ", ".join(_unknown_keys(values))
    return [f"warning: {source} has keys that this network ignores: {unknown}"] if unknown else []


def read_config(path: PathLike) -> tuple[BertConfig, list[str]]:
    """Reads a ``bert_config.json`` of Google's or of ours, or a ``config.json``.

    The keys tell a Hugging Face file, whose ``gelu`` becomes ``gelu_erf``. Raises UserError for
    every kind of unusable file.

    Returns: the configuration, and what :func:`config_notes` says of the file.
    """
    values = read_config_file(path)
    read = BertConfig.from_huggingface_dict if is_huggingface(values) else BertConfig.from_dict
    return read(values, source=str(path)), config_notes(values, source=path)


def _unknown_keys(values: dict[str, Any]) -> list[str]:
    known = {field.name for field in dataclasses.fields(BertConfig)} | _KEYS_WITHOUT_EFFECT
    return [key for key in values if key not in known]


def _meant_key(key: str) -> str:
    """The known key that an unknown one stands for in all likelihood, or the empty string.

    That is one spelt nearly alike, or one that has all the words of ``key`` in their order:
    "num_layers" for "num_hidden_layers".
    """
    known = [field.name for field in dataclasses.fields(BertConfig)]
    spelt = key.lower().replace("-", "_")
    near = difflib.get_close_matches(spelt, known, n=1, cutoff=_MISSPELT)
    words = spelt.split("_")
    longer = [name for name in known if len(words) > 1 and _is_within(words, name.split("_"))]
    return next(iter(near + longer), "")


def _is_within(words: list[str], others: list[str]) -> bool:
    """Whether ``words`` are among ``others``, in the same order."""
    left = iter(others)
    return all(word in left for word in words)


def _find_foreign(values: dict[str, Any]) -> str:
    """What a Hugging Face configuration asks for that our network is not, or the empty string."""
    model_type = values.get("model_type", "bert")
    if model_type != "bert":
        return f"model_type {model_type!r} is not supported; give a model of type 'bert'"
    positions = values.get("position_embedding_type", "absolute")
    if positions != "absolute":
        return f"position_embedding_type {positions!r} is not supported; only 'absolute' is"
    for key in ("is_decoder", "add_cross_attention"):
        if values.get(key):
            return f"{key} is set; only encoders are supported"
    activation = values.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _HUGGINGFACE_ACTIVATIONS:
        choices = ", ".join(_HUGGINGFACE_ACTIVATIONS)
        return f"hidden_act {activation!r} is not supported; known are {choices}"
    return ""


def _find_problem(config: BertConfig) -> str:
    """One sentence without its full stop, or the empty string when the config is sound."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        shown = reprlib.repr(value)
        if field.type == "int" and not (_is_number(value, int) and value > 0):
            return f"{field.name} must be a positive whole number, not {shown}"
        most = _MOST_LAYERS if field.name == "num_hidden_layers" else _MOST
        if field.type == "int" and value > most:
            return f"{field.name} must not be more than {most}, but is {shown}"
        if field.name.endswith("dropout_prob") and not (_is_number(value) and 0 <= value < 1):
            return f"{field.name} must be a number in [0, 1), not {shown}"
    deviation = config.initializer_range
    if not (_is_number(deviation) and 0 < deviation < math.inf):
        return f"initializer_range must be a positive number, not {reprlib.repr(deviation)}"
    if config.hidden_act not in ACTIVATIONS:
        choices = ", ".join(ACTIVATIONS)
        return f"hidden_act {reprlib.repr(config.hidden_act)} is unknown; choose one of {choices}"
    if config.hidden_size % config.num_attention_heads:
        return (
            f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads "
            f"{config.num_attention_heads}"
        )
    return ""


def _refuse_what_has_no_room(config: BertConfig) -> None:
    """Raises UserError where the weights alone are more than this machine's memory."""
    width, inner = config.hidden_size, config.intermediate_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    layer = 4 * width * width + 2 * width * inner
    needed = 4 * (rows * width + config.num_hidden_layers * layer)
    if needed > memory_bytes():
        fields = [f.name for f in dataclasses.fields(config) if f.type == "int"]
        sizes = ", ".join(f"{name} {getattr(config, name)}" for name in fields)
        raise UserError(
            f"model configuration: its weights take {needed / 2**30:,.0f} GiB, and this machine "
            f"has {memory_bytes() / 2**30:,.0f} GiB of memory; correct what is too large ({sizes})."
        )


def _is_number(value: object, kind: Any = (int, float)) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
