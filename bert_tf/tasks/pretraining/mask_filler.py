"""Predicts masked words with a pre-trained model kept in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_tf.model.config import BertConfig
from bert_tf.model_directory.complete import CompleteModel, check_vocabulary_fits
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

if TYPE_CHECKING:
    from bert_tf.model.options import ForwardOptions

MASK = "[MASK]"


@dataclasses.dataclass(frozen=True)
class Guess:
    """A guess for a masked word, with the model's probability."""

    token: str
    probability: float


def encode_with_masks(text: str, tokenizer: Tokenizer) -> list[int]:
    """Token ids of ``[CLS] text [SEP]``, with the mask's id for each ``[MASK]`` in the text."""
    parts = [tokenizer.encode(part) for part in text.split(MASK)]
    if len(parts) == 1:
        raise UserError(
            f"--text={text!r} contains no {MASK}; write it in place of the word to predict."
        )
    ids = [tokenizer.cls_id, *parts[0]]
    for part in parts[1:]:
        ids += [tokenizer.mask_id, *part]
    return [*ids, tokenizer.sep_id]


def sequence_with_masks(text: str, tokenizer: Tokenizer, config: BertConfig) -> list[int]:
    """Like :func:`encode_with_masks`; UserError for a text that is longer than the network."""
    ids = encode_with_masks(text, tokenizer)
    config.check_length(len(ids), f"--text has {len(ids)} tokens,", advice="shorten it")
    return ids


def mask_filler(model: CompleteModel, **settings: Any) -> MaskFiller:
    """A complete model, with the further arguments of :class:`MaskFiller`."""
    return MaskFiller(model.config, model.tokenizer, model.checkpoint, **settings)


class MaskFiller:
    """A masked language model with its weights."""

    def __init__(
        self,
        config: BertConfig,
        tokenizer: Tokenizer,
        checkpoint: PathLike,
        *,
        options: ForwardOptions | None = None,
        threads: int | None = None,
    ) -> None:
        """Restores the weights.

        ``options`` come from ``inference.settings.chosen_options``; None means float32, with native
        operations on CPUs if they are built. ``threads`` is their number; None for one per core.
        Raises UserError if the weights do not belong to the model.
        """
        # Imported here, so that mistakes in flags are reported before TensorFlow is loaded.
        from bert_tf.inference.predictor import Predictor
        from bert_tf.tasks.pretraining.task import PretrainingTask

        check_vocabulary_fits(tokenizer, config)
        self._config, self._tokenizer = config, tokenizer
        task = PretrainingTask(config, next_sentence=False)
        self._predictor = Predictor(task, checkpoint, options=options, threads=threads)

    def predict(self, texts: Sequence[str], *, top: int = 5) -> list[list[list[Guess]]]:
        """The ``top`` guesses, best first, for each ``[MASK]`` of each text.

        Raises UserError for a text without one, and for one that is longer than the network.
        """
        from bert_tf.inference.sequences import listed, texts_of

        given = [texts_of(text, wanted="a text") for text in listed(texts)]
        ids = [sequence_with_masks("".join(t), self._tokenizer, self._config) for t in given]
        return [self.fill(of_text, top=top) for of_text in ids]

    def fill(
        self, ids: Sequence[int], *, segment_ids: Sequence[int] | None = None, top: int = 5
    ) -> list[list[Guess]]:
        """Returns the ``top`` guesses, best first, for each mask in ``ids``.

        ``segment_ids`` are 1 for a second segment; None means that there is only one.
        """
        positions = np.flatnonzero(np.asarray(ids) == self._tokenizer.mask_id)
        predictions = self._predictor.run(
            {
                "input_ids": np.array([ids]),
                "input_mask": np.array([[1] * len(ids)]),
                "segment_ids": np.array([segment_ids or [0] * len(ids)]),
                "masked_lm_positions": np.array([positions]),
            },
        )
        # A model can have more outputs than the vocabulary has entries.
        probabilities = predictions["masked_lm_probabilities"][0, :, : self._tokenizer.vocab_size]
        best = np.argsort(-probabilities, axis=-1)[:, :top]
        return [
            [
                Guess(token, float(row[index]))
                for token, index in zip(self._tokenizer.convert_ids_to_tokens(chosen), chosen)
            ]
            for row, chosen in zip(probabilities, best.tolist())
        ]

    def close(self) -> None:
        """Frees the network's memory; nothing can be predicted any more."""
        self._predictor.session.close()
