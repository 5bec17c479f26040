"""Records of sequences of different lengths, made once by a stage and read in any order.

Their directory contains the records and the number of tokens in each. The first feature of every
layout is ``unique_ids``, which numbers the records.
"""

from __future__ import annotations

import collections
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union

import numpy as np

from bert_tf.durable.executor import Executor, batched
from bert_tf.durable.manifest import (
    Manifest,
    VocabularyEntry,
    describe_file,
    describe_vocabulary,
    read_manifest,
)
from bert_tf.durable.stage import Built, finished_call, run_stage, version_differences
from bert_tf.records.layouts import SEQUENCE, TARGETS, UNIQUE_IDS, RecordSpec
from bert_tf.records.tfrecord import RecordFile, TFRecordWriter, frame_records
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.unknown_share import UnknownTokens
from bert_tf.util.console import report
from bert_tf.util.digest import digest_of
from bert_tf.util.errors import UserError
from bert_tf.util.files import OFFSETS_SUFFIX, PathLike
from bert_tf.util.progress import Progress
from bert_tf.util.versions import maker, tokenizer_package

Item = TypeVar("Item")
# One for each token of a sequence.
Numbers = Union[Sequence[int], np.ndarray]

RECORDS_NAME = "features.tfrecord"
LENGTHS_NAME = "lengths.npy"
PER_ITEM_NAME = "records_per_item.npy"

_ID_SPEC = RecordSpec("unique_ids", (UNIQUE_IDS,))


@dataclasses.dataclass(frozen=True)
class SequenceRecords:
    """Finished records.

    Attributes:
      files: TFRecord files, in the order of the examples.
      lengths: int32 [N], number of tokens in each record without padding.
      digest: changes if any byte of the records changes.
      spec: layout of the records.
      max_seq_length: sequence length of a record.
      counts: the stage's totals.
      num_targets: values of a label.
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
    records_per_item: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def record_lengths(self) -> dict[str, int]:
        """The lengths for ``spec.parse_spec``."""
        return {SEQUENCE: self.max_seq_length, TARGETS: self.num_targets}


@dataclasses.dataclass(frozen=True)
class SequenceStage:
    """Makes records from files, once for every combination of files, vocabulary and parameters.

    Attributes:
      name: name of the stage, for manifests and messages.
      source: the file, or the first of several.
      tokenizer_files: the tokenizer.
      parameters: JSON values that, with the files and the vocabulary, determine the records; they
        include ``max_seq_length``, and ``num_targets`` if it is not 1.
      spec: layout of the records.
      write: writes the records to a directory with :func:`encode_and_write`.
      version: version of the code that writes the records.
      note: a line to report when records are made or found.
      more_sources: the other files, in the order in which they are read.
    """

    name: str
    source: Path
    tokenizer_files: TokenizerFiles
    parameters: Mapping[str, Any]
    spec: RecordSpec
    write: Callable[[Path], Built]
    version: int
    note: str | None = None
    more_sources: Sequence[Path] = ()

    @property
    def sources(self) -> list[Path]:
        """All files, in order."""
        return [self.source, *self.more_sources]

    def build(self, directory: PathLike) -> SequenceRecords:
        """Makes the records in a directory of their own, unless it already contains them.

        Raises UserError for an invalid vocabulary or unusable directory, and as ``write`` does.
        """
        if self.note:
            report(self.note)
        vocabulary = self._vocabulary()
        run_stage(
            self.name,
            directory,
            parameters=self.parameters,
            inputs=self.sources,
            build=self.write,
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
            records_per_item=per_item,
        )

    def _vocabulary(self) -> VocabularyEntry:
        return describe_vocabulary(self.tokenizer_files.load())

    def _versions(self, vocabulary: VocabularyEntry) -> dict[str, str]:
        return maker(self.version, tokenizer_package(vocabulary.kind))


class EncodedSequences(NamedTuple):
    """Records without their ``unique_ids``, which depend on all preceding records.

    Attributes:
      records: serialized with the layout from :func:`without_ids`.
      lengths: int32, the number of tokens in each record.
      counts: totals over these records.
      unknown: the unknown tokens of the texts.
      records_per_item: int32, the records of each item; None if each has one.
    """

    records: list[bytes]
    lengths: np.ndarray
    counts: Mapping[str, int]
    unknown: UnknownTokens
    records_per_item: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        spec: RecordSpec,
        features: Mapping[str, np.ndarray],
        counts: Mapping[str, int],
        unknown: UnknownTokens,
    ) -> EncodedSequences:
        """Encodes the records of a layout from :func:`without_ids`.

        ``features`` are [N, L] arrays, including ``input_mask``; those that the layout lacks are
        ignored.
        """
        lengths = features["input_mask"].sum(axis=1, dtype=np.int32)
        kept = {feature.name: features[feature.name] for feature in spec.features}
        return cls(spec.encode_batch(kept), lengths, counts, unknown)


def without_ids(spec: RecordSpec) -> RecordSpec:
    """The part of a layout that does not depend on preceding records."""
    return RecordSpec(f"{spec.name}_without_ids", spec.features[1:])


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


def encode_and_write(
    directory: Path,
    items: Iterable[Item],
    make_encoder: Callable[[], Callable[[list[Item]], EncodedSequences]],
    *,
    items_per_batch: int,
    executor: Executor,
    stage: str,
    unit: str,
    total: int,
    first_id: int = 0,
    counts: Mapping[str, int] | None = None,
) -> Built:
    """Encodes items on several cores and writes the records and their lengths, for a stage.

    Args:
      directory: directory of the stage.
      items: what the records are made from.
      make_encoder: creates, in each process, an encoder of lists of items.
      items_per_batch: the length of these lists.
      executor: encodes the batches.
      stage: name of the stage.
      unit: a key of the batches' counts, by which progress is shown.
      total: total amount of ``unit``.
      first_id: ``unique_ids`` of the first record; the others continue from there.
      counts: totals to which those of the batches are added.
    """
    progress, unknown = Progress(stage, total, unit), UnknownTokens()
    totals = collections.Counter(counts)
    lengths = [np.zeros(0, np.int32)]
    per_item: list[np.ndarray] = []
    batches = batched(items, items_per_batch)
    with TFRecordWriter(directory / RECORDS_NAME) as writer:
        for encoded in executor.map(make_encoder, batches, what=stage):
            ids = _encode_ids(first_id + writer.num_records, len(encoded.records))
            # Concatenated Examples are one Example with the features of both (protobuf's rule for
            # merging messages).
            writer.write_framed(frame_records(map(bytes.__add__, ids, encoded.records)))
            lengths.append(encoded.lengths)
            unknown.add(encoded.unknown)
            if encoded.records_per_item is not None:
                per_item.append(encoded.records_per_item)
            totals.update(encoded.counts)
            progress.advance(encoded.counts[unit])
    progress.finish()
    arrays = {LENGTHS_NAME: np.concatenate(lengths)}
    if per_item:
        arrays[PER_ITEM_NAME] = np.concatenate(per_item)
    for name, array in arrays.items():
        np.save(directory / name, array)
    records = {RECORDS_NAME: writer.num_records, RECORDS_NAME + OFFSETS_SUFFIX: None}
    return Built({**records, **dict.fromkeys(arrays)}, totals, unknown)


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


def _encode_ids(first: int, count: int) -> list[bytes]:
    """The unique_ids of records, each as a separate Example."""
    return _ID_SPEC.encode_batch({UNIQUE_IDS.name: np.arange(first, first + count)[:, np.newaxis]})
