"""The registry of optimizers: one module each, with its rule and its row.

Flags, the ledger, memory and disk estimates, and the slot names in checkpoints are derived from the
rows. To add an optimizer, write a module like ``adam.py`` and add its row to ``OPTIMIZERS``.
TensorFlow is not loaded until a rule is applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bert_tf.update.optimizers import adam, lamb, lans, muon
from bert_tf.update.optimizers.row import OptimizerRow
from bert_tf.util.errors import UserError
from bert_tf.util.options import Option, OptionValue

OPTIMIZERS: dict[str, OptimizerRow] = {
    "adam": adam.ROW,
    "lamb": lamb.ROW,
    "lans": lans.ROW,
    "muon": muon.ROW,
}


def optimizer_row(name: str) -> OptimizerRow:
    """The row of an optimizer; raises UserError for an unknown name."""
    if name not in OPTIMIZERS:
        raise UserError(f"optimizer '{name}' is not one of {', '.join(OPTIMIZERS)}.")
    return OPTIMIZERS[name]


def slot_names() -> set[str]:
    """The last components of all optimizers' slot names."""
    return {slot for row in OPTIMIZERS.values() for slot in row.slots}


def option_flags() -> dict[str, Option]:
    """Flag -> option, for all optimizers; a flag shared by several optimizers appears once."""
    return {option.flag: option for _, option in _options() if option.flag}


def options_from_flags(
    name: str, values: Mapping[str, OptionValue], defaults: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Builds an optimizer's options from the values of :func:`option_flags`.

    ``defaults`` are those of the command. Raises UserError for contradictory options and for flags
    that belong to other optimizers.
    """
    row = optimizer_row(name)
    flags_of_row = {option.flag: key for key, option in row.options.items() if option.flag}
    for flag, value in values.items():
        asks_for_something = value is not False and value != defaults[flag]
        if flag not in flags_of_row and asks_for_something:
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
