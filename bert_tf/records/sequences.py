"""Records of sequences of different lengths, made once by a stage and read in any order.

Their directory contains the records and the number of tokens in each. The first feature of every
layout is ``unique_ids``, which numbers the records.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, Union

import numpy as np

from bert_tf.durable.executor import Processes, batched
from bert_tf.durable.manifest import (
    Manifest,
    VocabularyEntry,
    describe_file,
    describe_vocabulary,
    read_manifest,
)
from bert_tf.durable.stage import Built, finished_call, run_stage, version_differences
from bert_tf.records.layouts import CHOICES, SEQUENCE, TARGETS, UNIQUE_IDS, RecordSpec
from bert_tf.records.tfrecord import RecordFile, TFRecordWriter, frame_records
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.unknown_share import CountingTokenizer, UnknownTokens
from bert_tf.util.digest import digest_of
from bert_tf.util.errors import UserError
from bert_tf.util.files import OFFSETS_SUFFIX, PathLike
from bert_tf.util.progress import Progress
from bert_tf.util.versions import maker, tokenizer_package

Item = TypeVar("Item", contravariant=True)
# One for each token of a sequence.
Numbers = Union[Sequence[int], np.ndarray]
TokenSequence = tuple[list[int], list[int]]  # token ids and segment ids

RECORDS_NAME = "features.tfrecord"
LENGTHS_NAME = "lengths.npy"
PER_ITEM_NAME = "records_per_item.npy"

_ID_SPEC = RecordSpec("unique_ids", (UNIQUE_IDS,))


@dataclasses.dataclass(frozen=True)
class SequenceRecords:
    """Finished records.

    Attributes:
      files: TFRecord files, in the order of the examples.
      lengths: int32 [N], number of tokens in each record (in its longest sequence) without padding.
      digest: changes if any byte of the records changes.
      num_targets: values of a label.
      num_choices: sequences in each feature of a record; None if it is one sequence.
      records_per_item: int32, the records of each item, such as a long text's windows; None if all
        have one.
    """

    files: list[Path]
    lengths: np.ndarray
    digest: str
    spec: RecordSpec
    max_seq_length: int
    counts: Mapping[str, int]
    num_targets: int = 1
    num_choices: int | None = None
    records_per_item: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def record_lengths(self) -> dict[str, int]:
        """The lengths for ``spec.parse_spec``."""
        choices = {} if self.num_choices is None else {CHOICES: self.num_choices}
        return {SEQUENCE: self.max_seq_length, TARGETS: self.num_targets, **choices}


class Encoded(NamedTuple):
    """What some items become.

    Attributes:
      features: arrays [N, L] for N records, or [N, choices, L] if each has several sequences; they
        include ``input_mask``. Those that the layout of the records lacks are left out.
      records_per_item: int32, the records of each item; None if each has one.
    """

    features: Mapping[str, np.ndarray]
    counts: Mapping[str, int]
    records_per_item: np.ndarray | None = None


class Encoder(Protocol[Item]):
    """Encodes items; each worker process gets a copy."""

    def encode(self, items: Sequence[Item], tokenizer: Tokenizer) -> Encoded:
        """Encodes items in order."""


@dataclasses.dataclass(frozen=True)
class SequenceStage:
    """Makes records from files, once for every combination of files, vocabulary and parameters.

    Attributes:
      parameters: JSON values that, with the files and the vocabulary, determine the records; they
        include ``max_seq_length``, ``num_targets`` if it is not 1, and ``num_choices`` if a record
        has several sequences.
      spec: layout of the records.
      version: version of the code that makes the records; goes up when those of equal input change.
      unit: a key of the encoder's counts, by which progress is shown.
      total: total amount of ``unit``.
      most_records: an upper bound on the number of records, windows of long texts counting as one;
        None for ``total``.
      items_per_batch: how many a worker is handed at a time.
      total_per_worker: the fewest; encoding these takes about as long as starting a process.
      num_workers: maximum number of processes, 0 for one per core; it does not change the records.
      first_id: ``unique_ids`` of the first record; the others continue from there.
      counts: totals to which those of the batches are added.
      lacking: what a file lacks of which no record can be made, for messages.
    """

    name: str
    sources: Sequence[Path]
    tokenizer_files: TokenizerFiles
    parameters: Mapping[str, Any]
    spec: RecordSpec
    version: int
    items: Sequence[Any]
    encoder: Encoder[Any]
    unit: str
    total: int
    items_per_batch: int
    total_per_worker: int
    num_workers: int = 0
    first_id: int = 0
    counts: Mapping[str, int] | None = None
    lacking: str = "examples"
    most_records: int | None = None

    @property
    def max_records(self) -> int:
        """The upper bound on the number of records."""
        return self.total if self.most_records is None else self.most_records

    def build(self, directory: PathLike) -> SequenceRecords:
        """Makes the records in a directory of their own, unless it already contains them.

        Raises UserError for an invalid vocabulary or unusable directory, for a negative number of
        workers, and if there would be no records.
        """
        vocabulary = self._vocabulary()
        run_stage(
            self.name,
            directory,
            parameters=self.parameters,
            inputs=self.sources,
            build=self._write,
            vocabulary=vocabulary,
            made_by=self._versions(vocabulary),
        )
        return self.open(directory)

    def find(self, directory: PathLike) -> SequenceRecords | None:
        """The records that :meth:`build` would make, if ``directory`` already contains them."""
        vocabulary, inputs = self._vocabulary(), tuple(map(describe_file, self.sources))
        made_by = self._versions(vocabulary)
        call = Manifest(self.name, self.parameters, inputs, (), {}, vocabulary, made_by=made_by)
        earlier = finished_call(directory, call)
        if earlier is None or version_differences(earlier, call):
            return None
        return self.open(directory)

    def open(self, directory: PathLike) -> SequenceRecords:
        """Opens the records that :meth:`build` left in a directory.

        Raises UserError if there are none or their lengths are damaged.
        """
        directory = Path(directory)
        manifest = read_manifest(directory)
        if manifest.stage != self.name:
            raise UserError(
                f"{directory} holds the output of {manifest.stage}, not of {self.name}."
            )
        max_seq_length = self.parameters[SEQUENCE]
        records = RecordFile(directory / RECORDS_NAME)
        count, per_item = len(records), None
        if PER_ITEM_NAME in manifest.output_names:
            per_item = _read_array(directory, PER_ITEM_NAME, manifest, records=count, counts=np.sum)
        return SequenceRecords(
            files=[records.path],
            lengths=_read_array(directory, LENGTHS_NAME, manifest, records=count, counts=len),
            digest=manifest.digest,
            spec=self.spec,
            max_seq_length=max_seq_length,
            counts=manifest.counts,
            num_targets=self.parameters.get(TARGETS, 1),
            num_choices=self.parameters.get(CHOICES),
            records_per_item=per_item,
        )

    def _vocabulary(self) -> VocabularyEntry:
        return describe_vocabulary(self.tokenizer_files.load())

    def _versions(self, vocabulary: VocabularyEntry) -> dict[str, str]:
        return maker(self.version, tokenizer_package(vocabulary.kind))

    def _write(self, directory: Path) -> Built:
        """Encodes the items on several cores and writes the records and their lengths."""
        executor = Processes.of(self.num_workers, at_most=-(-self.total // self.total_per_worker))
        worker = functools.partial(_Worker, self.tokenizer_files, self.encoder, self.spec)
        batches = batched(self.items, self.items_per_batch)
        progress, unknown = Progress(self.name, self.total, self.unit), UnknownTokens()
        totals = collections.Counter(self.counts)
        lengths = [np.zeros(0, np.int32)]
        per_item: list[np.ndarray] = []
        with TFRecordWriter(directory / RECORDS_NAME) as writer:
            for made in executor.map(worker, batches, what=self.name):
                first = self.first_id + writer.num_records
                numbers = np.arange(first, first + len(made.records))[:, np.newaxis]
                ids = _ID_SPEC.encode_batch({UNIQUE_IDS.name: numbers})
                # Concatenated Examples are one Example with the features of both (protobuf's rule
                # for merging messages).
                writer.write_framed(frame_records(map(bytes.__add__, ids, made.records)))
                lengths.append(made.lengths)
                unknown.add(made.unknown)
                if made.records_per_item is not None:
                    per_item.append(made.records_per_item)
                totals.update(made.counts)
                progress.advance(made.counts[self.unit])
        progress.finish()
        if not writer.num_records:
            raise UserError(f"{self.sources[0]} has no {self.lacking}; give another file.")
        arrays = {LENGTHS_NAME: np.concatenate(lengths)}
        if per_item:
            arrays[PER_ITEM_NAME] = np.concatenate(per_item)
        for name, array in arrays.items():
            np.save(directory / name, array)
        records = {RECORDS_NAME: writer.num_records, RECORDS_NAME + OFFSETS_SUFFIX: None}
        return Built({**records, **dict.fromkeys(arrays)}, totals, unknown)


class _Batch(NamedTuple):
    """Records without their ``unique_ids``, which depend on all preceding records."""

    records: list[bytes]
    lengths: np.ndarray
    counts: Mapping[str, int]
    unknown: UnknownTokens
    records_per_item: np.ndarray | None


class _Worker:
    """Makes the records of a stage; each process has one."""

    def __init__(
        self, tokenizer_files: TokenizerFiles, encoder: Encoder[Any], spec: RecordSpec
    ) -> None:
        self._tokenizer = CountingTokenizer(tokenizer_files.load())
        self._encoder = encoder
        self._spec = RecordSpec(f"{spec.name}_without_ids", spec.features[1:])

    def __call__(self, items: list[Any]) -> _Batch:
        features, counts, per_item = self._encoder.encode(items, self._tokenizer)
        lengths = features["input_mask"].sum(axis=-1, dtype=np.int32)
        if lengths.ndim > 1:
            lengths = lengths.max(axis=1)
        kept = {feature.name: _in_rows(features[feature.name]) for feature in self._spec.features}
        records = self._spec.encode_batch(kept)
        return _Batch(records, lengths, counts, self._tokenizer.take(), per_item)


def _in_rows(values: np.ndarray) -> np.ndarray:
    """[N, ..., L] -> [N, values of a record]."""
    return values.reshape(len(values), math.prod(values.shape[1:]))


def padded(rows: Sequence[Numbers], width: int, *, fill: int = 0) -> np.ndarray:
    """int32 [N, width]: the rows, none of which is longer, each padded with ``fill``."""
    array = np.full((len(rows), width), fill, np.int32)
    for padded_row, row in zip(array, rows):
        padded_row[: len(row)] = row
    return array


def padded_inputs(
    ids: Sequence[Numbers],
    width: int,
    *,
    pad_id: int,
    segments: Sequence[Numbers] | None = None,
) -> dict[str, np.ndarray]:
    """The network's inputs for sequences of token ids, int32 [N, width] each; segment 0 if None."""
    lengths = np.array([len(row) for row in ids])[:, np.newaxis]
    return {
        "input_ids": padded(ids, width, fill=pad_id),
        "input_mask": (np.arange(width) < lengths).astype(np.int32),
        "segment_ids": padded([[]] * len(ids) if segments is None else segments, width),
    }


def joined(parts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> TokenSequence:
    """``[CLS] first [SEP]`` or, of two parts, ``[CLS] first [SEP] second [SEP]``."""
    ids, segments = [tokenizer.cls_id], [0]
    for number, part in enumerate(parts):
        ids += [*part, tokenizer.sep_id]
        segments += [number] * (len(part) + 1)
    return ids, segments


def inputs_of(
    sequences: Sequence[TokenSequence], width: int, tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    """The network's inputs for sequences, [N, width] each."""
    ids, segments = zip(*sequences)
    return padded_inputs(ids, width, pad_id=tokenizer.pad_id, segments=segments)


def _read_array(
    directory: Path,
    name: str,
    manifest: Manifest,
    *,
    records: int,
    counts: Callable[[np.ndarray], int],
) -> np.ndarray:
    """An array that a stage wrote.

    Raises UserError for another file than it wrote, or if what it ``counts`` is not the number of
    records.
    """
    path = directory / name
    known = {entry.name: entry.digest for entry in manifest.outputs}
    problem = "is missing"
    if path.is_file():
        content = path.read_bytes()
        if digest_of(content) == known.get(name):
            array = np.load(io.BytesIO(content))
            if counts(array) == records:
                return array
        problem = f"is not the file of the {records} records stored with it"
    raise UserError(f"{path} {problem}; delete {directory}, so that it is made again.")
