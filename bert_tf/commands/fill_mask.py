"""Predicts masked words with a pre-trained model.

    python -m bert_tf.commands.fill_mask --model_dir=output_dir \\
        --text="The [MASK] is returned as a list."
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from bert_tf.cli.flags import flag_group, run_command
from bert_tf.inference.arithmetic import define_native_flag, measured_options
from bert_tf.inference.flags import define_model_files_flags, model_from_flags
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.complete import check_vocabulary_fits
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.util import environment
from bert_tf.util.console import say
from bert_tf.util.errors import UserError

if TYPE_CHECKING:
    from bert_tf.model.options import ForwardOptions

# Length at which native operations are compared with TensorFlow's, once for all texts.
_USUAL_LENGTH = 128


@dataclasses.dataclass(frozen=True)
class Guess:
    """A guess for a masked word, with the model's probability."""

    token: str
    probability: float


def encode_with_masks(text: str, tokenizer: Tokenizer, *, mask: str = "[MASK]") -> list[int]:
    """Token ids of ``[CLS] text [SEP]``, with the mask's id for each ``[MASK]`` in the text."""
    parts = [tokenizer.encode(part) for part in text.split(mask)]
    if len(parts) == 1:
        raise UserError(
            f"--text={text!r} contains no {mask}; write it in place of the word to predict."
        )
    ids = [tokenizer.cls_id, *parts[0]]
    for part in parts[1:]:
        ids += [tokenizer.mask_id, *part]
    return [*ids, tokenizer.sep_id]


class MaskFiller:
    """A masked language model with its weights."""

    def __init__(
        self,
        config: BertConfig,
        tokenizer: Tokenizer,
        checkpoint: str | Path,
        *,
        options: ForwardOptions | None = None,
    ) -> None:
        """Restores the weights.

        ``options`` come from ``arithmetic.measured_options``; None means float32, with native
        operations on CPUs if they are built. Raises UserError if the weights do not belong to the
        model.
        """
        # Imported here, so that mistakes in flags are reported before TensorFlow is loaded.
        from bert_tf.inference.predictor import Predictor
        from bert_tf.tasks.pretraining.task import PretrainingTask

        check_vocabulary_fits(tokenizer, config)
        self._tokenizer = tokenizer
        task = PretrainingTask(config, next_sentence=False)
        self._predictor = Predictor(task, checkpoint, options=options)

    def fill(
        self, ids: Sequence[int], *, segment_ids: Sequence[int] | None = None, top: int = 5
    ) -> list[list[Guess]]:
        """Returns the ``top`` guesses, best first, for each mask in ``ids``.

        ``segment_ids`` are 1 for a second segment; None means that there is only one.
        """
        positions = np.flatnonzero(np.asarray(ids) == self._tokenizer.mask_id)
        found = self._predictor.run(
            {
                "input_ids": np.array([ids]),
                "input_mask": np.array([[1] * len(ids)]),
                "segment_ids": np.array([segment_ids or [0] * len(ids)]),
                "masked_lm_positions": np.array([positions]),
            },
        )
        # A model can have more outputs than the vocabulary has entries.
        probabilities = found["masked_lm_probabilities"][0, :, : self._tokenizer.vocab_size]
        best = np.argsort(-probabilities, axis=-1)[:, :top]
        return [
            [
                Guess(token, float(row[index]))
                for token, index in zip(self._tokenizer.convert_ids_to_tokens(chosen), chosen)
            ]
            for row, chosen in zip(probabilities, best.tolist())
        ]


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
    environment.prepare_environment(verbose=False, use_xla=False)
    if values.top < 1:
        raise UserError(f"--top={values.top} must be at least 1.")
    model = model_from_flags(values)
    config, tokenizer = model.config, model.tokenizer
    ids = encode_with_masks(values.text, tokenizer)
    config.check_length(len(ids), f"--text has {len(ids)} tokens,", advice="shorten it")
    for note in model.notes:
        say(note, stream=sys.stderr)
    length = min(_USUAL_LENGTH, config.max_position_embeddings)
    options, _ = measured_options(config, native_ops=values.native_ops, sequences=1, length=length)
    filler = MaskFiller(config, tokenizer, model.checkpoint, options=options)
    for guesses in filler.fill(ids, top=values.top):
        print("  ".join(f"{guess.token} {guess.probability:.3f}" for guess in guesses))


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    define_flags()
    run_command(main)


if __name__ == "__main__":
    run()
