"""Encodes labelled sentences as records, once per combination of file, vocabulary and settings.

Every word is marked in exactly one record, and records are in the order of the file, so predictions
at word starts are in its words' order.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bert_tf.records.layouts import LABEL_IDS, TAGGING_PREDICTION, TAGGING_TRAINING, WORD_STARTS
from bert_tf.records.sequences import Encoded, SequenceStage, padded, padded_inputs
from bert_tf.tasks.tagging.formats import Sentence, TaggedFile
from bert_tf.tasks.tagging.windows import WindowSettings, windows_of_words
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles

STAGE = "tagging_features"
VERSION = 2  # goes up when the records of equal input change


def feature_stage(
    file: TaggedFile,
    *,
    tokenizer_files: TokenizerFiles,
    windows: WindowSettings,
    labels: Sequence[str] | None,
    num_workers: int = 0,
    sentences_per_batch: int = 256,
    sentences_per_worker: int = 10_000,
) -> SequenceStage:
    """The stage that makes the records of a file.

    The ``counts`` of the records are ``sentences``, ``words``, ``sequences`` (N), and
    ``cut_sentences``, the number of sentences that do not fit in one sequence. ``labels`` are the
    model's by class number, None for records without; words with other labels get class 0, and must
    be excluded from the loss. Raises UserError if the length is too small.
    """
    windows.validate()
    # Windows without overlap are what earlier versions made, whose manifests have no stride.
    stride = {"doc_stride": windows.stride} if windows.stride < windows.room else {}
    names = None if labels is None else list(labels)
    return SequenceStage(
        STAGE,
        [file.path],
        tokenizer_files,
        {"max_seq_length": windows.max_seq_length, **stride, "labels": names},
        TAGGING_PREDICTION if labels is None else TAGGING_TRAINING,
        VERSION,
        file.sentences,
        SentenceEncoder(windows, {label: number for number, label in enumerate(labels or ())}),
        unit="sentences",
        total=len(file.sentences),
        items_per_batch=sentences_per_batch,
        total_per_worker=sentences_per_worker,
        num_workers=num_workers,
    )


class WordSequence(NamedTuple):
    """One sequence of a sentence.

    Attributes:
      ids: its tokens, [CLS] and [SEP] included.
      word_starts: 1 at the first pieces of the words that are scored in it, 0 at other tokens.
    """

    ids: list[int]
    word_starts: list[int]


def sequences_of(
    words: Sequence[str], tokenizer: Tokenizer, windows: WindowSettings
) -> list[WordSequence]:
    """The sequences of a sentence: one if it fits, otherwise overlapping windows.

    The sequences' word starts, one after the other, are in the order of the words, one for each. A
    word that has no pieces becomes [UNK], and one that does not fit in a sequence is truncated.
    """
    pieces = [tokenizer.encode(word)[: windows.room] or [tokenizer.unk_id] for word in words]
    found = []
    for inside, scored in windows_of_words([len(word) for word in pieces], windows):
        starts = [0]
        for number, word in enumerate(pieces[inside], start=inside.start):
            starts += [int(scored.start <= number < scored.stop), *[0] * (len(word) - 1)]
        ids = itertools.chain.from_iterable(pieces[inside])
        found.append(WordSequence([tokenizer.cls_id, *ids, tokenizer.sep_id], [*starts, 0]))
    return found


@dataclasses.dataclass(frozen=True)
class SentenceEncoder:
    """Encodes sentences as records (see :class:`bert_tf.records.sequences.Encoder`).

    ``numbers`` are the classes of labels, none for records without labels.
    """

    windows: WindowSettings
    numbers: Mapping[str, int]

    def encode(self, items: Sequence[Sentence], tokenizer: Tokenizer) -> Encoded:
        """Encodes sentences in order."""
        size = self.windows.max_seq_length
        sequences: list[WordSequence] = []
        labels, cut = [], 0
        for sentence in items:
            found = sequences_of(sentence.words, tokenizer, self.windows)
            cut += len(found) > 1
            sequences += found
            if sentence.labels and self.numbers:
                numbers = (self.numbers.get(label, 0) for label in sentence.labels)
                labels += [
                    [next(numbers) if is_start else 0 for is_start in sequence.word_starts]
                    for sequence in found
                ]
        ids = [sequence.ids for sequence in sequences]
        features = {
            **padded_inputs(ids, size, pad_id=tokenizer.pad_id),
            WORD_STARTS: padded([sequence.word_starts for sequence in sequences], size),
            LABEL_IDS: padded(labels, size),
        }
        counts = {
            "sentences": len(items),
            "words": sum(len(sentence.words) for sentence in items),
            "sequences": len(ids),
            "cut_sentences": cut,
        }
        return Encoded(features, counts)
