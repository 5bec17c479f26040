"""Shared by all benchmark programs: flags, their checks, and writing of the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable

from absl import flags

from benchmarks.results import Result, write_results
from bert_tf.cli.flags import run_command
from bert_tf.model.config import BertConfig
from bert_tf.util import environment
from bert_tf.util.errors import UserError
from bert_tf.util.files import require_file

REQUIRED = object()

# Name -> default, help and, for a number, its minimum. Instead of a default there may be a type,
# which means no default; ``REQUIRED``, for a string that must be given; or a tuple of choices, the
# first of which is the default.
FlagTable = Mapping[str, tuple[Any, ...]]

_SHARED_FLAGS: FlagTable = {
    "accumulation_steps": (1, "Micro batches per update.", 1),
    "batch_size": (16, "Sequences per micro batch.", 1),
    "bert_config_file": (str, "A network other than the default one."),
    "json": (str, "Path for the results as JSON."),
    "micro_batch_size": (8, "Sequences in a rank's micro batch.", 1),
    "micro_batches_a_turn": (8, "Approximate micro batches per case and turn.", 1),
    "precision": ("auto", "Precision of products, as in training."),
    "predictions": (20, "Masked tokens per sequence.", 1),
    "seq_length": (128, "Tokens per sequence.", 2),
    "steps": (5, "Timed steps per turn.", 1),
    "threads": (int, "Cores to use (default: all).", 1),
    "turns": (5, "Turns of each subject.", 1),
    "warmup_steps": (3, "Steps before the timed ones.", 1),
}
_DEFINE = {
    bool: flags.DEFINE_bool,
    float: flags.DEFINE_float,
    int: flags.DEFINE_integer,
    list: flags.DEFINE_list,
    str: flags.DEFINE_string,
}


def shared_flags(*names: str, **defaults: object) -> FlagTable:
    """The named flags that several benchmarks share, and flags with other ``defaults``."""
    found = {name: _SHARED_FLAGS[name] for name in (*names, *defaults)}
    return {name: (defaults.get(name, flag[0]), *flag[1:]) for name, flag in found.items()}


def define_flags(table: FlagTable, values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags in a table."""
    for name, (default, text, *least) in table.items():
        more = {"lower_bound": least[0]} if least else {}
        if default is REQUIRED:
            flags.DEFINE_string(name, None, text, required=True, flag_values=values)
        elif isinstance(default, tuple):
            flags.DEFINE_enum(name, default[0], default, text, flag_values=values)
        elif isinstance(default, type):
            _DEFINE[default](name, None, text, flag_values=values, **more)
        else:
            _DEFINE[type(default)](name, default, text, flag_values=values, **more)


def run_benchmark(table: FlagTable, measure: Callable[[], Iterable[Result] | None]) -> None:
    """Parses flags, measures without TensorFlow's messages, and writes --json.

    Args:
      table: the flags.
      measure: yields the results, unless it writes them itself. Results that precede an error are
        written, too; a UserError ends the process with one sentence.
    """
    define_flags(table)

    def main(_) -> None:
        environment.prepare_environment(verbose=False)
        results: list[Result] = []
        try:
            for found in measure() or ():
                results.append(found)
        finally:
            if results and flags.FLAGS.json:
                write_results(flags.FLAGS.json, results)

    run_command(main)


def start_tensorflow() -> None:
    """Imports TensorFlow for graphs, as in training, without its messages."""
    import tensorflow.compat.v1 as tf

    environment.quiet_tensorflow(verbose=False)
    tf.disable_eager_execution()


def network_from_flags(default: BertConfig | None = None) -> BertConfig:
    """The network of --bert_config_file; ``default`` is used if the flag may be omitted.

    Raises UserError if --seq_length is given and the network has fewer positions.
    """
    values = flags.FLAGS
    path = values.bert_config_file
    if path is None and default is not None:
        network = default
    else:
        network = BertConfig.from_json_file(require_file(path, flag="bert_config_file"))
    if "seq_length" in values:
        check_length("seq_length", values.seq_length, network)
    return network


def check_length(flag: str, length: int, network: BertConfig) -> None:
    """Raises UserError if the network has fewer positions."""
    positions = network.max_position_embeddings
    if length > positions:
        raise UserError(
            f"--{flag}={length} is more than the network's {positions} positions; lower it."
        )


def threads_from_flags() -> int:
    """--threads, or the number of all cores."""
    return flags.FLAGS.threads or environment.available_cores()


def whole_numbers(
    flag: str,
    *,
    least: int = 1,
    may_be_empty: bool = False,
    values: flags.FlagValues = flags.FLAGS,
) -> list[int]:
    """The numbers in a list flag; raises UserError if one is too small or not a number."""
    texts = values[flag].value
    numbers = [int(text) if text.isdecimal() else least - 1 for text in texts]
    if min(numbers, default=least if may_be_empty else least - 1) < least:
        raise UserError(f"--{flag}={','.join(texts)}: give whole numbers of at least {least}.")
    return numbers


def known_names(
    flag: str, known: Iterable[str], values: flags.FlagValues = flags.FLAGS
) -> list[str]:
    """The names in a list flag, without duplicates; raises UserError for an unknown one."""
    names = list(dict.fromkeys(values[flag].value))
    for name in names:
        if name not in known:
            raise UserError(f"--{flag}: {name!r} is not one of {', '.join(known)}.")
    return names
