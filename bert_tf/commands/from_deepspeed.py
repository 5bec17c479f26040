"""Converts the settings of a DeepSpeed bing_bert run to a flag file.

    python -m bert_tf.commands.from_deepspeed --config=deepspeed_bsz64k_lamb_config_seq128.json \\
        --model_config=bert_large_lamb.json --output=phase1.flags -- \\
        --max_seq_length 128 --lr_schedule EE --lr_offset 10e-4 --output_dir out

The words after -- are the other arguments of deepspeed_train.py, or all of them. Settings without a
counterpart, and unknown keys, are listed in the file and in messages.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from absl import flags

from bert_tf.cli.flags import flag_group, run_command
from bert_tf.compat.deepspeed import convert, read_run
from bert_tf.util.console import say
from bert_tf.util.files import atomic_open, check_output_file


@flag_group("Files")
def define_flags() -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("config", None, "DeepSpeed's JSON (default: --deepspeed_config after --).")
    flags.DEFINE_string("model_config", None, "bing_bert's JSON (default: --cf after --).")
    flags.DEFINE_string("output", None, "Flag file to write (default: standard output).")


def main(arguments: Sequence[str]) -> None:
    """Writes the flag file, and messages to standard error."""
    values = flags.FLAGS
    settings = read_run(arguments[1:], config=values.config, model_config=values.model_config)
    output = check_output_file(values.output, flag="output") if values.output else None
    file = convert(settings)
    for note in file.notes:
        say(f"not converted: {note}", stream=sys.stderr)
    if output is None:
        print(file.text(), end="")
        return
    with atomic_open(output) as opened:
        opened.write(file.text())


run = functools.partial(run_command, main, define_flags, takes_words=True)


if __name__ == "__main__":
    run()
