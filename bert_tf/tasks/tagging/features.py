"""Encodes labelled sentences as records, once per combination of file, vocabulary and settings.

This is a stage (records/sequences.py): records are written on all cores and kept in a separate
directory with a manifest, so that later runs reuse them. Every word starts in exactly one record,
and records are in the order of the file, so predictions at word starts are in its words' order.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Callable

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
    without_ids,
)
from bert_tf.stages.executor import Executor, Processes
from bert_tf.stages.stage import Built
from bert_tf.tasks.tagging.formats import Sentence, TaggedFile
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError

STAGE = "tagging_features"
VERSION = 1  # goes up when the records of equal input change

_LEAST_LENGTH = 3


def feature_stage(
    file: TaggedFile,
    *,
    tokenizer_files: TokenizerFiles,
    max_seq_length: int,
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
      max_seq_length: positions per record.
      labels: the model's labels by class number; None for records without labels. Words with
        other labels get class 0, and must be excluded from the loss.
      num_workers: maximum number of processes, 0 for one per core; it does not change the records.
      sentences_per_batch: how many a worker is handed at a time.
      sentences_per_worker: fewest sentences; encoding these takes about as long as starting a
        process.

    Raises:
      UserError: if the length is too small or the number of workers invalid.
    """
    check_length(max_seq_length)
    executor = Processes.of(num_workers, at_most=-(-len(file.sentences) // sentences_per_worker))
    spec = TAGGING_PREDICTION if labels is None else TAGGING_TRAINING
    numbers = {label: number for number, label in enumerate(labels or ())}
    encoder = functools.partial(
        SentenceEncoder, tokenizer_files.load, max_seq_length, numbers, without_ids(spec)
    )
    return SequenceStage(
        STAGE,
        file.path,
        tokenizer_files,
        {"max_seq_length": max_seq_length, "labels": None if labels is None else list(labels)},
        spec,
        version=VERSION,
        write=functools.partial(_write, file, encoder, sentences_per_batch, executor),
    )


def check_length(max_seq_length: int) -> None:
    """Raises UserError if a sequence has no room for a word."""
    if max_seq_length < _LEAST_LENGTH:
        raise UserError(
            f"--max_seq_length={max_seq_length} has no room for [CLS], a word and [SEP]; give at "
            f"least {_LEAST_LENGTH}."
        )


class SentenceEncoder:
    """Encodes sentences as records; each worker process has one."""

    def __init__(
        self,
        open_tokenizer: Callable[[], Tokenizer],
        max_seq_length: int,
        numbers: Mapping[str, int],
        spec: RecordSpec,
    ):
        """Opens the tokenizer; ``numbers`` maps labels to classes; ``spec`` has the features."""
        self._tokenizer = open_tokenizer()
        self._max_seq_length = max_seq_length
        self._numbers = numbers
        self._spec = spec

    def __call__(self, sentences: Sequence[Sentence]) -> EncodedSequences:
        """Encodes sentences in order."""
        tokenizer, size = self._tokenizer, self._max_seq_length
        ids, starts, labels, cut = [], [], [], 0
        for sentence in sentences:
            pieces = pieces_of(sentence.words, tokenizer, size - 2)
            windows = list(cut_at_words(pieces, size - 2))
            cut += len(windows) > 1
            for window in windows:
                inside = itertools.chain.from_iterable(pieces[window])
                ids.append([tokenizer.cls_id, *inside, tokenizer.sep_id])
                starts.append(_at_starts([1] * len(pieces[window]), pieces[window]))
                if sentence.labels and self._numbers:
                    numbers = [self._numbers.get(label, 0) for label in sentence.labels[window]]
                    labels.append(_at_starts(numbers, pieces[window]))
        features = {
            "input_ids": padded(ids, size, fill=tokenizer.pad_id),
            "input_mask": padded([[1] * len(row) for row in ids], size),
            "segment_ids": padded([[]] * len(ids), size),
            WORD_STARTS: padded(starts, size),
            LABEL_IDS: padded(labels, size),
        }
        words = sum(len(sentence.words) for sentence in sentences)
        counts = {
            "sentences": len(sentences),
            "words": words,
            "sequences": len(ids),
            "cut_sentences": cut,
        }
        return EncodedSequences.of(self._spec, features, counts)


def pieces_of(words: Sequence[str], tokenizer: Tokenizer, most: int) -> list[list[int]]:
    """The ids of each word's pieces: at least one, and at most the first ``most``."""
    return [tokenizer.encode(word)[:most] or [tokenizer.unk_id] for word in words]


def cut_at_words(pieces: Sequence[Sequence[int]], most: int) -> Iterator[slice]:
    """Splits a sentence into the longest runs of whole words with at most ``most`` pieces each."""
    start, used = 0, 0
    for number, word in enumerate(pieces):
        if used + len(word) > most:
            yield slice(start, number)
            start, used = number, 0
        used += len(word)
    yield slice(start, len(pieces))


def _at_starts(values: Sequence[int], pieces: Sequence[Sequence[int]]) -> list[int]:
    """A row with each value at its word's first piece, and 0 at other pieces and at [CLS]."""
    row = [0]
    for value, word in zip(values, pieces):
        row += [value, *[0] * (len(word) - 1)]
    return row


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
