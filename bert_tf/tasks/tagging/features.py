"""Encodes labelled sentences as records, once per combination of file, vocabulary and settings.

This is a stage (records/sequences.py): records are written on all cores and kept in a separate
directory with a manifest, so that later runs reuse them. Every word is marked in exactly one
record, and records are in the order of the file, so predictions at word starts are in its words'
order.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, NamedTuple

from bert_tf.durable.executor import Executor, Processes
from bert_tf.durable.stage import Built
from bert_tf.records.layouts import (
    LABEL_IDS,
    TAGGING_PREDICTION,
    TAGGING_TRAINING,
    WORD_STARTS,
    RecordSpec,
)
from bert_tf.records.sequences import (
    EncodedSequences,
    SequenceStage,
    encode_and_write,
    padded,
    padded_inputs,
    without_ids,
)
from bert_tf.tasks.tagging.formats import Sentence, TaggedFile
from bert_tf.tasks.tagging.windows import WindowSettings, windows_of_words
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.unknown_share import CountingTokenizer

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
    ``cut_sentences``, the number of sentences that do not fit in one sequence.

    Args:
      file: the sentences.
      tokenizer_files: the tokenizer, which each worker opens.
      windows: lengths.
      labels: the model's labels by class number; None for records without labels. Words with
        other labels get class 0, and must be excluded from the loss.
      num_workers: maximum number of processes, 0 for one per core; it does not change the records.
      sentences_per_batch: how many a worker is handed at a time.
      sentences_per_worker: fewest sentences; encoding these takes about as long as starting a
        process.

    Raises:
      UserError: if the length is too small or the number of workers invalid.
    """
    windows.validate()
    executor = Processes.of(num_workers, at_most=-(-len(file.sentences) // sentences_per_worker))
    spec = TAGGING_PREDICTION if labels is None else TAGGING_TRAINING
    numbers = {label: number for number, label in enumerate(labels or ())}
    encoder = functools.partial(
        SentenceEncoder, tokenizer_files.load, windows, numbers, without_ids(spec)
    )
    return SequenceStage(
        STAGE,
        file.path,
        tokenizer_files,
        _parameters(windows, labels),
        spec,
        version=VERSION,
        write=functools.partial(_write, file, encoder, sentences_per_batch, executor),
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


class SentenceEncoder:
    """Encodes sentences as records; each worker process has one."""

    def __init__(
        self,
        open_tokenizer: Callable[[], Tokenizer],
        windows: WindowSettings,
        numbers: Mapping[str, int],
        spec: RecordSpec,
    ):
        """Opens the tokenizer; ``numbers`` maps labels to classes; ``spec`` has the features."""
        self._tokenizer = CountingTokenizer(open_tokenizer())
        self._windows = windows
        self._numbers = numbers
        self._spec = spec

    def __call__(self, sentences: Sequence[Sentence]) -> EncodedSequences:
        """Encodes sentences in order."""
        size = self._windows.max_seq_length
        sequences: list[WordSequence] = []
        labels, cut = [], 0
        for sentence in sentences:
            found = sequences_of(sentence.words, self._tokenizer, self._windows)
            cut += len(found) > 1
            sequences += found
            if sentence.labels and self._numbers:
                numbers = (self._numbers.get(label, 0) for label in sentence.labels)
                labels += [
                    [next(numbers) if is_start else 0 for is_start in sequence.word_starts]
                    for sequence in found
                ]
        ids = [sequence.ids for sequence in sequences]
        features = {
            **padded_inputs(ids, size, pad_id=self._tokenizer.pad_id),
            WORD_STARTS: padded([sequence.word_starts for sequence in sequences], size),
            LABEL_IDS: padded(labels, size),
        }
        counts = {
            "sentences": len(sentences),
            "words": sum(len(sentence.words) for sentence in sentences),
            "sequences": len(ids),
            "cut_sentences": cut,
        }
        return EncodedSequences.of(self._spec, features, counts, self._tokenizer.take())


def _parameters(windows: WindowSettings, labels: Sequence[str] | None) -> dict[str, object]:
    # Windows without overlap are what earlier versions made, whose manifests have no stride.
    stride = {"doc_stride": windows.stride} if windows.stride < windows.room else {}
    names = None if labels is None else list(labels)
    return {"max_seq_length": windows.max_seq_length, **stride, "labels": names}


def _write(
    file: TaggedFile,
    make_encoder: Callable[[], SentenceEncoder],
    sentences_per_batch: int,
    executor: Executor,
    directory: Path,
) -> Built:
    return encode_and_write(
        directory,
        file.sentences,
        make_encoder,
        items_per_batch=sentences_per_batch,
        executor=executor,
        stage=STAGE,
        unit="sentences",
        total=len(file.sentences),
    )
