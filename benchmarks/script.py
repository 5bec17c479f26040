"""What the programs of all benchmarks share: flags, their checks, and writing the results."""

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

# Name -> default, help and, of a number, the least that it may be. In place of a default stand a
# type where there is none, ``REQUIRED`` for a text without which nothing can be done, and a tuple
# for one of several words, the first if not given.
FlagTable = Mapping[str, tuple[Any, ...]]

_SHARED_FLAGS: FlagTable = {
    "accumulation_steps": (1, "Micro batches of an update.", 1),
    "batch_size": (16, "Sequences of a micro batch.", 1),
    "bert_config_file": (str, "Another network than the default one."),
    "json": (str, "Where to write the results."),
    "micro_batch_size": (8, "Sequences of a rank's micro batch.", 1),
    "micro_batches_a_turn": (8, "About this many a case.", 1),
    "precision": ("auto", "Precision of products, as in training."),
    "predictions": (20, "Masked words of a sequence.", 1),
    "seq_length": (128, "Tokens of a sequence.", 2),
    "steps": (5, "Timed steps of a turn.", 1),
    "threads": (int, "Cores to use; all if not given.", 1),
    "turns": (5, "Turns of everything that is compared.", 1),
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
    """``names`` of the flags that several benchmarks have, and others with ``defaults``."""
    found = {name: _SHARED_FLAGS[name] for name in (*names, *defaults)}
    return {name: (defaults.get(name, flag[0]), *flag[1:]) for name, flag in found.items()}


def define_flags(table: FlagTable, values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags of a table."""
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
    """Parses the flags, measures without TensorFlow's messages, and writes --json.

    Args:
      table: the flags.
      measure: gives the results, if it does not write them itself. What it had given when it raised
        an error is written too; a UserError ends the process as one sentence.
    """
    define_flags(table)

    def main(_) -> None:
        environment.prepare_environment(verbose=False, use_xla=False)
        results: list[Result] = []
        try:
            for found in measure() or ():
                results.append(found)
        finally:
            if results and flags.FLAGS.json:
                write_results(flags.FLAGS.json, results)

    run_command(main)


def start_tensorflow() -> None:
    """TensorFlow with graphs, as training has it, and without its messages."""
    import tensorflow.compat.v1 as tf

    environment.quiet_tensorflow(verbose=False)
    tf.disable_eager_execution()


def network_from_flags(default: BertConfig | None = None) -> BertConfig:
    """The network of --bert_config_file, or ``default`` where that flag may be left out.

    Raises UserError where --seq_length is given and the network has fewer positions.
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
    """Raises UserError where the network has fewer positions."""
    positions = network.max_position_embeddings
    if length > positions:
        raise UserError(
            f"--{flag}={length} is more than the network's {positions} positions; lower it."
        )


def threads_from_flags() -> int:
    """--threads, or all cores."""
    return flags.FLAGS.threads or environment.available_cores()


def whole_numbers(
    flag: str,
    *,
    least: int = 1,
    may_be_empty: bool = False,
    values: flags.FlagValues = flags.FLAGS,
) -> list[int]:
    """The numbers of a flag that is a list; raises UserError for what is less or no number."""
    texts = values[flag].value
    numbers = [int(text) if text.isdecimal() else least - 1 for text in texts]
    if min(numbers, default=least if may_be_empty else least - 1) < least:
        raise UserError(f"--{flag}={','.join(texts)}: give whole numbers from {least} on.")
    return numbers


def known_names(
    flag: str, known: Iterable[str], values: flags.FlagValues = flags.FLAGS
) -> list[str]:
    """The names of a flag that is a list, each once; raises UserError for an unknown one."""
    names = list(dict.fromkeys(values[flag].value))
    for name in names:
        if name not in known:
            raise UserError(f"--{flag}: {name!r} is none of {', '.join(known)}.")
    return names
