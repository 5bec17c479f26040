"""Predicts masked words with a pre-trained model.

    python -m bert_tf.commands.fill_mask --model_dir=output_dir \\
        --text="The [MASK] is returned as a list."
"""

from __future__ import annotations

import functools
import sys

from absl import flags

from bert_tf.cli.flags import flag_group, run_command
from bert_tf.inference.settings import (
    chosen_options,
    define_model_files_flags,
    define_native_flag,
    model_from_flags,
)
from bert_tf.tasks.pretraining.mask_filler import MaskFiller, sequence_with_masks
from bert_tf.util import environment
from bert_tf.util.console import say
from bert_tf.util.errors import UserError


@flag_group("Model and text")
def define_flags() -> None:
    """Defines the command's flags."""
    define_model_files_flags()
    flags.DEFINE_string("text", None, "Text with [MASK] in it.", required=True)
    flags.DEFINE_integer("top", 5, "Number of guesses per mask.")
    define_native_flag()


def main(_: object) -> None:
    """Prints the guesses, one line per mask."""
    values = flags.FLAGS
    environment.prepare_environment(verbose=False)
    if values.top < 1:
        raise UserError(f"--top={values.top} must be at least 1.")
    model = model_from_flags(values)
    config, tokenizer = model.config, model.tokenizer
    ids = sequence_with_masks(values.text, tokenizer, config)
    for note in model.notes:
        say(note, stream=sys.stderr)
    options, _ = chosen_options(config, native_ops=values.native_ops)
    filler = MaskFiller(config, tokenizer, model.checkpoint, options=options)
    for guesses in filler.fill(ids, top=values.top):
        print("  ".join(f"{guess.token} {guess.probability:.3f}" for guess in guesses))


run = functools.partial(run_command, main, define_flags)


if __name__ == "__main__":
    run()
