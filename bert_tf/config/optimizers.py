"""The registry of optimizers, one row each.

Flags, the ledger, estimates of memory and disk, and the slot names in checkpoints follow from the
rows. To add an optimizer, write a module with its algorithm (a subclass of
``bert_tf.update.optimizers.base.Optimizer``) and add a row here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Union

from bert_tf.util.errors import UserError

_FLOAT32_BYTES = 4
# Closer to 1 little is left of 1 - beta in float32.
_LARGEST_BETA = 0.999999

MUON_MOMENTUM = "muon_m"
_KERNEL_OF_A_LAYER = re.compile(r"bert/encoder/(.*/)?kernel")

OptionValue = Union[bool, float, str, None]
Options = Mapping[str, OptionValue]


@dataclasses.dataclass(frozen=True)
class Option:
    """A setting of some optimizers, which they take as a keyword argument.

    Attributes:
      default: the default value; it determines the flag's type, None meaning a number.
      flag: the name of its flag, None if users cannot set it.
      help_text: the flag's help text.
      is_text: whether a value other than None is a text.
    """

    default: OptionValue
    flag: str | None = None
    help_text: str = ""
    is_text: bool = False


def _no_problem(options: Options) -> str | None:
    del options
    return None


@dataclasses.dataclass(frozen=True)
class OptimizerRow:
    """What the rest of the toolkit knows about an optimizer without loading TensorFlow.

    Attributes:
      title: the optimizer's usual name.
      implementation: ``module:class``, imported on use.
      slots: names of its float32 variables in a weight's shape: ``adam_m`` is stored as
        ``<weight>/adam_m``.
      choose_slots: maps a weight's name and shape to the slots that it has; None if all weights
        have all ``slots``.
      options: its specific options, by keyword.
      has_native_form: whether its class has a ``native_update``.
      can_be_sharded: whether its class updates parts of weights, by ``Optimizer.norms`` and
        ``Optimizer.sum_over_parts`` where a step depends on more than one element.
      problem_of: returns a sentence about contradictory options, None for valid ones.
    """

    title: str
    implementation: str
    slots: tuple[str, ...]
    choose_slots: Callable[[str, Sequence[int]], tuple[str, ...]] | None = None
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    has_native_form: bool = False
    can_be_sharded: bool = False
    problem_of: Callable[[Options], str | None] = _no_problem

    def slots_of(self, name: str, shape: Sequence[int]) -> tuple[str, ...]:
        """The names of a weight's slots, in the order of the row."""
        return self.slots if self.choose_slots is None else self.choose_slots(name, shape)

    def slot_bytes(self, shapes: Mapping[str, Sequence[int]]) -> int:
        """Bytes of all slots of the weights ``shapes``, name -> shape."""
        return _FLOAT32_BYTES * sum(
            len(self.slots_of(name, shape)) * math.prod(shape) for name, shape in shapes.items()
        )

    def resolve(self, given: Options) -> dict[str, Any]:
        """All its options, with defaults for those that are not given."""
        return {name: given.get(name, option.default) for name, option in self.options.items()}


def muon_slots(name: str, shape: Sequence[int]) -> tuple[str, ...]:
    """Muon's slots: a momentum for the kernels of the layers, and AdamW's for everything else.

    Embeddings and heads, whose rows or columns stand for words, are not among the matrices that it
    was made for (Jordan et al. 2024).
    """
    is_matrix = len(shape) == 2 and _KERNEL_OF_A_LAYER.fullmatch(name) is not None
    return (MUON_MOMENTUM,) if is_matrix else _ADAM_SLOTS


def _muon_problem(options: Options) -> str | None:
    if not 0 <= options["momentum"] < 1:
        return f"--muon_momentum={options['momentum']:g} must be in [0, 1)."
    return _moments_problem(options)


def _moments_problem(options: Options) -> str | None:
    for name, option in _MOMENTS.items():
        if not 0 <= options[name] <= _LARGEST_BETA:
            return f"--{option.flag}={options[name]:g} must be in [0, {_LARGEST_BETA}]."
    return None


def _layerwise_problem(options: Options) -> str | None:
    return _moments_problem(options) or _trust_ratio_problem(options) or _exclusion_problem(options)


def _trust_ratio_problem(options: Options) -> str | None:
    least, most = options["min_trust_ratio"], options["max_trust_ratio"]
    if least is not None and least < 0:
        return f"--min_trust_ratio={least:g} must not be negative."
    if most is not None and most <= 0:
        return f"--max_trust_ratio={most:g} must be positive."
    if least is not None and most is not None and least > most:
        return (
            f"--min_trust_ratio={least:g} is greater than --max_trust_ratio={most:g}; give bounds "
            "in ascending order."
        )
    return None


_ADAM_SLOTS = ("adam_m", "adam_v")
_BIAS_CORRECTION = Option(
    False,
    flag="adam_bias_correction",
    help_text="Adam with bias correction (google-research/bert has none).",
)


def name_patterns(text: str) -> list[re.Pattern[str]]:
    """The comma-separated regular expressions of a flag; raises re.error."""
    return [re.compile(expression) for expression in text.split(",") if expression]


def _exclusion_problem(options: Options) -> str | None:
    text = options["exclude_from_layer_adaptation"]
    try:
        name_patterns(text or "")
    except re.error as error:
        return (
            f"--exclude_from_layer_adaptation={text}: '{error.pattern}' is not a regular "
            f"expression ({error.msg}); give names or expressions separated by commas."
        )
    return None


_MOMENTS = {
    "beta_1": Option(0.9, flag="adam_beta1", help_text="Decay of the mean of gradients."),
    "beta_2": Option(
        0.999,
        flag="adam_beta2",
        help_text="Decay of the mean of squared gradients.",
    ),
}

_LAYER_ADAPTATION = {
    "min_trust_ratio": Option(
        None,
        flag="min_trust_ratio",
        help_text="LAMB, LANS: lower bound of the trust ratio; none if not given.",
    ),
    "max_trust_ratio": Option(
        None,
        flag="max_trust_ratio",
        help_text="LAMB, LANS: upper bound of the trust ratio; none if not given.",
    ),
    "exclude_from_layer_adaptation": Option(
        None,
        flag="exclude_from_layer_adaptation",
        help_text="LAMB, LANS: regular expressions, separated by commas; a variable in whose name "
        "one is found has trust ratio 1 (default: variables without weight decay; empty: none).",
        is_text=True,
    ),
}

OPTIMIZERS: dict[str, OptimizerRow] = {
    "adam": OptimizerRow(
        title="AdamW",
        implementation="bert_tf.update.optimizers.adam:AdamW",
        slots=_ADAM_SLOTS,
        options={
            "bias_correction": _BIAS_CORRECTION,
            **_MOMENTS,
        },
        has_native_form=True,
        can_be_sharded=True,
        problem_of=_moments_problem,
    ),
    "lamb": OptimizerRow(
        title="LAMB",
        implementation="bert_tf.update.optimizers.lamb:Lamb",
        slots=_ADAM_SLOTS,
        options={
            "bias_correction": Option(True),
            **_MOMENTS,
            **_LAYER_ADAPTATION,
            "prenormalize": Option(
                False,
                flag="lamb_prenormalize",
                help_text="LAMB: divide gradients by their global norm before the moments "
                "(NVIDIA's NVLAMB); --clip_norm has no effect then.",
            ),
        },
        has_native_form=True,
        can_be_sharded=True,
        problem_of=_layerwise_problem,
    ),
    "lans": OptimizerRow(
        title="LANS",
        implementation="bert_tf.update.optimizers.lans:Lans",
        slots=_ADAM_SLOTS,
        options={"bias_correction": Option(True), **_MOMENTS, **_LAYER_ADAPTATION},
        has_native_form=True,
        can_be_sharded=True,
        problem_of=_layerwise_problem,
    ),
    "muon": OptimizerRow(
        title="Muon",
        implementation="bert_tf.update.optimizers.muon:Muon",
        slots=(MUON_MOMENTUM, *_ADAM_SLOTS),
        choose_slots=muon_slots,
        options={
            "momentum": Option(
                0.95,
                flag="muon_momentum",
                help_text="Muon: decay of the mean of gradients of the layers' kernels.",
            ),
            "bias_correction": _BIAS_CORRECTION,
            **_MOMENTS,
        },
        has_native_form=True,
        can_be_sharded=True,
        problem_of=_muon_problem,
    ),
}


def optimizer_row(name: str) -> OptimizerRow:
    """The row of an optimizer; raises UserError for a name that is not in the registry."""
    if name not in OPTIMIZERS:
        raise UserError(f"optimizer '{name}' is not one of {', '.join(OPTIMIZERS)}.")
    return OPTIMIZERS[name]


def slot_names() -> set[str]:
    """The last components of all optimizers' slot names."""
    return {slot for row in OPTIMIZERS.values() for slot in row.slots}


def option_flags() -> dict[str, Option]:
    """Flag -> option, for all optimizers; a flag that several share appears once."""
    return {option.flag: option for _, option in _options() if option.flag is not None}


def options_from_flags(name: str, values: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """The options of an optimizer from the values of :func:`option_flags`.

    Raises UserError for contradictory options, and for a flag that this optimizer does not have.
    """
    row = optimizer_row(name)
    flags_of_row = {option.flag: key for key, option in row.options.items() if option.flag}
    for flag, option in option_flags().items():
        if flag not in flags_of_row and values[flag] != option.default:
            owners = [owner for owner, other in _options() if other.flag == flag]
            raise UserError(
                f"--{flag} belongs to --optimizer_type={' or '.join(owners)}, but the optimizer is "
                f"{row.title}; drop one of the two."
            )
    options = {key: values[flag] for flag, key in flags_of_row.items()}
    problem = row.problem_of(row.resolve(options))
    if problem is not None:
        raise UserError(problem)
    return options


def _options() -> Iterator[tuple[str, Option]]:
    """(optimizer name, option) pairs, in the registry's order."""
    for name, row in OPTIMIZERS.items():
        for option in row.options.values():
            yield name, option
