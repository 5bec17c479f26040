"""Files with one word and its labels per line, as in the shared tasks of CoNLL; their records.

The first column of a line is the word, the last one its label. Columns are separated by tabs if the
line or the file's first one has any, otherwise by spaces; other white space may be a word. A blank
line ends a sentence; so does a line that begins with ``-DOCSTART-``, which is skipped.

A record is ``[CLS] some words [SEP]``; sentences that are too long become windows, which overlap
and are cut between words. A word may be in several of them, but is trained, scored and predicted
only in the one where it has the most context, as in google-research/bert's run_squad.py. Records
are in the order of the file, so predictions at word starts are in its words' order.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.records.layouts import LABEL_IDS, TAGGING_PREDICTION, TAGGING_TRAINING, WORD_STARTS
from bert_tf.records.sequences import Encoded, SequenceStage, padded, padded_inputs
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.windows import windows_of_words
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import find_file, read_lines

LABELS = "labels"  # predictions at all positions, of which those at word starts count

STAGE = "tagging_features"
VERSION = 2  # goes up when the records of equal input change
_NUM_SPECIAL = 2  # [CLS] and [SEP]

_STEMS = {"train": ("train",), "dev": ("dev", "devel", "valid"), "test": ("test",)}
_SUFFIXES = (".txt", ".tsv", ".conll")
_DOCUMENT = "-DOCSTART-"
_BLANKS = re.compile(" +")
_AROUND = " \t\r"  # not str.strip's characters, which may be words
_SHOWN_LABELS = 12


class Sentence(NamedTuple):
    """A sentence of a file.

    Attributes:
      first_line: the number of its first line, counted from 1.
      words: its words.
      labels: its labels; empty if they were not read.
    """

    first_line: int
    words: list[str]
    labels: list[str]


@dataclasses.dataclass(frozen=True)
class TaggedFile:
    """The contents of a file, including all of its lines unchanged; ``flag`` named it."""

    path: Path
    flag: str
    lines: list[str]
    sentences: list[Sentence]

    @property
    def num_words(self) -> int:
        """The number of words in all sentences."""
        return sum(len(sentence.words) for sentence in self.sentences)

    @property
    def label_counts(self) -> collections.Counter[str]:
        """The number of words with each label."""
        return collections.Counter(label for s in self.sentences for label in s.labels)

    @property
    def labels(self) -> list[str]:
        """The distinct labels, sorted."""
        return sorted(self.label_counts)

    def first_use(self, labels: Container[str]) -> tuple[int, str]:
        """The first line, counted from 1, with one of these labels, and the label."""
        return next(
            (line, label)
            for sentence in self.sentences
            for line, label in enumerate(sentence.labels, start=sentence.first_line)
            if label in labels
        )


def find_split(data_dir: Path, split: str, *, flag: str) -> Path:
    """The file of a split; raises UserError if the directory has none."""
    names = [f"{stem}{suffix}" for stem in _STEMS[split] for suffix in _SUFFIXES]
    return find_file(data_dir, names, flag=flag, advice="give the directory of the files")


def read_tagged(path: Path, *, flag: str, needs_labels: bool) -> TaggedFile:
    """Reads a file in UTF-8; without ``needs_labels``, only its words.

    Raises UserError, which names ``flag`` and the line, if the file cannot be read, has JSON or no
    sentences, or has a line without a word, without a label, or with more or fewer columns than the
    first.
    """
    lines = read_lines(path, flag=flag)
    if _is_json_object(lines[0]):
        raise UserError(
            f"--{flag}: line 1 of {path} is a JSON object; give a file with a word and its label "
            "on each line."
        )
    by_tabs = _are_separated_by_tabs(lines)
    sentences: list[Sentence] = []
    in_sentence, width = False, 0
    for number, line in enumerate(lines, start=1):
        cells = columns_of(line, by_tabs=by_tabs)
        if not cells:
            in_sentence = False
            continue
        if not in_sentence:
            sentences.append(Sentence(number, [], []))
            in_sentence = True
        where = f"--{flag}: line {number} of {path}"
        if not cells[0]:
            raise UserError(f"{where} has no word before its first tab; correct it.")
        if needs_labels:
            if len(cells) == 1 or not cells[-1]:
                word = short_repr(cells[0])
                raise UserError(f"{where} has the word {word} without a label; correct it.")
            sentences[-1].labels.append(cells[-1])
        width = width or len(cells)
        if len(cells) != width:
            raise UserError(
                f"{where} has {len(cells)} columns, and the lines before it {width}; correct it, "
                "or give a file with one word on each line."
            )
        sentences[-1].words.append(cells[0])
    if not sentences:
        raise UserError(f"--{flag}: {path} has no sentences; give a file with a word on each line.")
    return TaggedFile(path, flag, lines, sentences)


def columns_of(line: str, *, by_tabs: bool = False) -> list[str]:
    """The columns of a line, empty if it is blank or begins a document.

    They are separated by tabs if there are any, or if ``by_tabs``.
    """
    line = line.rstrip(_AROUND)
    if not line or line.lstrip(_AROUND).startswith(_DOCUMENT):
        return []
    if by_tabs or "\t" in line:
        return [cell.strip(_AROUND) for cell in line.split("\t")]
    return _BLANKS.split(line.strip(_AROUND))


def _are_separated_by_tabs(lines: Sequence[str]) -> bool:
    """Whether the first line with a word has tabs; then "New York" is not a word and its label."""
    return "\t" in next((line for line in lines if columns_of(line)), "").rstrip(_AROUND)


def _is_json_object(line: str) -> bool:
    """Whether a line is an object with keys; {} may be a word."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value)


def unknown_labels(file: TaggedFile, labels: Sequence[str]) -> dict[str, int]:
    """The labels of a file that the model lacks, with the number of words that have each."""
    used = file.label_counts.most_common()
    return {label: count for label, count in used if label not in set(labels)}


def check_labels(file: TaggedFile, labels: Sequence[str]) -> None:
    """Raises UserError for a label that the model lacks, and names its line."""
    unknown = unknown_labels(file, labels)
    if unknown:
        line, label = file.first_use(unknown)
        shown = ", ".join(labels[:_SHOWN_LABELS])
        more = len(labels) - _SHOWN_LABELS
        raise UserError(
            f"--{file.flag}: line {line} of {file.path} has the label {short_repr(label)}, which "
            f"the model does not have; its labels are {shown}"
            f"{f' and {more} more' if more > 0 else ''}."
        )


def with_predictions(file: TaggedFile, predicted: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a file, each with the label predicted for its word as an additional last column.

    Lines without a word become blank. This is the input format of conlleval, the evaluation program
    of CoNLL's shared tasks.
    """
    by_line: dict[int, str] = {}
    by_tabs = _are_separated_by_tabs(file.lines)
    for sentence, labels in zip(file.sentences, predicted):
        by_line.update(enumerate(labels, start=sentence.first_line))
    for number, line in enumerate(file.lines, start=1):
        line = line.strip(_AROUND)
        separator = "\t" if by_tabs or "\t" in line else " "
        yield f"{line}{separator}{by_line[number]}" if number in by_line else ""


@dataclasses.dataclass(frozen=True)
class WindowSettings:
    """Lengths and distances in tokens.

    Attributes:
      max_seq_length: maximum length of a sequence, [CLS] and [SEP] included.
      doc_stride: maximum distance between the starts of consecutive windows, at least 1; None for
        half of the room in a window.
    """

    max_seq_length: int
    doc_stride: int | None = None

    @property
    def room(self) -> int:
        """Tokens of words in a sequence."""
        return self.max_seq_length - _NUM_SPECIAL

    @property
    def stride(self) -> int:
        """The distance that is used; with ``room``, windows do not overlap."""
        return min(self.room, self.doc_stride or max(1, self.room // 2))

    def validate(self) -> None:
        """Raises UserError if a sequence has no room for a word."""
        if self.room < 1:
            raise UserError(
                f"--max_seq_length={self.max_seq_length} has no room for [CLS], a word and [SEP]; "
                f"give at least {_NUM_SPECIAL + 1}."
            )


def feature_stage(
    file: TaggedFile,
    *,
    tokenizer_files: TokenizerFiles,
    windows: WindowSettings,
    labels: Sequence[str] | None,
    num_workers: int = 0,
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
        items_per_batch=256,
        total_per_worker=10_000,
        num_workers=num_workers,
        most_records=file.num_words,
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
    sequences = []
    lengths = [len(word) for word in pieces]
    for inside, scored in windows_of_words(lengths, windows.room, windows.stride):
        starts = [0]
        for number, word in enumerate(pieces[inside], start=inside.start):
            starts += [int(scored.start <= number < scored.stop), *[0] * (len(word) - 1)]
        ids = itertools.chain.from_iterable(pieces[inside])
        sequences.append(WordSequence([tokenizer.cls_id, *ids, tokenizer.sep_id], [*starts, 0]))
    return sequences


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
            of_sentence = sequences_of(sentence.words, tokenizer, self.windows)
            cut += len(of_sentence) > 1
            sequences += of_sentence
            if sentence.labels and self.numbers:
                numbers = (self.numbers.get(label, 0) for label in sentence.labels)
                labels += [
                    [next(numbers) if is_start else 0 for is_start in sequence.word_starts]
                    for sequence in of_sentence
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


def predicted_labels(
    sentences: Sequence[Sequence[str]], labels: Sequence[str], predictions: Mapping[str, np.ndarray]
) -> list[list[str]]:
    """The predicted labels of the words of each sentence, from predictions [N, S]."""
    numbers = predictions[LABELS][predictions[WORD_STARTS] > 0].tolist()
    num_words = sum(map(len, sentences))
    if len(numbers) != num_words:
        raise ValueError(f"{len(numbers)} words were predicted, not {num_words}")
    following = (labels[number] for number in numbers)
    return [list(itertools.islice(following, len(words))) for words in sentences]
