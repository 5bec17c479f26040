"""A cache on disk of a teacher's soft targets, so that each record is computed only once.

Only records with stored masks have the same targets in every epoch. A cache has pieces of
consecutive records, each a TFRecord file that is complete or absent, and ``manifest.json``, which
identifies teacher, records and settings. A record of a piece is the structured array of an
example's targets: all have the same size, so no offsets are needed, and each has a checksum.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.loading import initialise_from_checkpoint
from bert_tf.durable.resumable import resumable_map
from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.input.batches import dataset_of_positions
from bert_tf.input.pipeline import PretrainingRecords, record_reader
from bert_tf.model.task import Network, create_network
from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.records.framing import FRAMING_BYTES, frame_of, record_in
from bert_tf.tasks.distillation.task import CLASSES, PROBABILITIES, DistillationTask, SoftTargets
from bert_tf.tasks.distillation.teacher import Teacher
from bert_tf.train.run import Run
from bert_tf.tuning.arithmetic import Arithmetic, session_config
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import atomic_open, make_output_dir
from bert_tf.util.progress import Progress

MANIFEST_NAME = "manifest.json"

_RECORDS_OF_A_PIECE = 16_384
_BATCH_SIZE = 64
_BATCHES_OF_A_PIECE = _RECORDS_OF_A_PIECE // _BATCH_SIZE
_MOST_OPEN_PIECES = 1024
_MOST_SHORT_CLASSES = 1 << 16

# Names, for messages, of entries that can differ between ranks although their flags agree.
_MESSAGE_NAMES = {
    "data_sha256": "training data",
    "num_records": "number of records",
    "predictions": "masked tokens of a record",
}


@dataclasses.dataclass(frozen=True)
class TargetFiles:
    """The cached targets of all records, in one directory.

    Attributes:
      directory: where the pieces are; every rank must see it.
      num_records: N, over all pieces.
      predictions: P, masked tokens per record.
      targets: K, classes kept per masked token.
      num_classes: upper bound of the class ids.
    """

    directory: Path
    num_records: int
    predictions: int
    targets: int
    num_classes: int

    @property
    def dtype(self) -> np.dtype:
        """The dtype of one target: its class, and its probability rounded to half precision."""
        short = self.num_classes <= _MOST_SHORT_CLASSES
        return np.dtype([(CLASSES, "<u2" if short else "<i4"), (PROBABILITIES, "<f2")])

    @property
    def num_bytes(self) -> int:
        """The total size of all pieces in bytes."""
        return self.num_records * self.frame_bytes

    @property
    def shape(self) -> tuple[int, int]:
        """(P, K), the shape of one record's targets."""
        return self.predictions, self.targets

    @property
    def frame_bytes(self) -> int:
        """The size in bytes of one record's targets in a piece, checksum included."""
        return self.predictions * self.targets * self.dtype.itemsize + FRAMING_BYTES

    @property
    def num_pieces(self) -> int:
        """The number of piece files."""
        return -(-self.num_records // _RECORDS_OF_A_PIECE)

    def path(self, piece: int) -> Path:
        """The file of a piece."""
        return self.directory / f"targets-{piece:06d}.tfrecord"

    def missing(self) -> list[int]:
        """The pieces that do not exist yet."""
        return [piece for piece in range(self.num_pieces) if not self.path(piece).is_file()]

    def records_of(self, piece: int) -> range:
        """The indices of a piece's records."""
        start = piece * _RECORDS_OF_A_PIECE
        return range(start, min(start + _RECORDS_OF_A_PIECE, self.num_records))

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the classes, int32, and probabilities, float32, of records: [B, P, K] each.

        Raises UserError if they are damaged.
        """
        targets = np.empty([len(indices), *self.shape], self.dtype)
        for row, index in zip(targets, indices.tolist()):
            piece, place = divmod(index, _RECORDS_OF_A_PIECE)
            record = record_in(_open_piece(self, piece)[place].tobytes())
            if record is None:
                raise _damaged(self.path(piece), f"the checksum of record {place} is wrong")
            row[:] = np.frombuffer(record, self.dtype).reshape(self.shape)
        return targets[CLASSES].astype(np.int32), targets[PROBABILITIES].astype(np.float32)

    def write(self, piece: int, values: np.ndarray) -> None:
        """Writes the targets of all records of one piece, [N, P, K] of :attr:`dtype`."""
        with atomic_open(self.path(piece), "wb") as file:
            file.writelines(frame_of(record.tobytes()) for record in values)

    def joined_to(
        self,
        batches: tf.data.Dataset,
        order: Callable[[int], np.ndarray],
        *,
        batch_size: int | None,
        start_position: int,
    ) -> tf.data.Dataset:
        """Joins the batches of ``pipeline.training_dataset`` with the targets of their records.

        ``order`` is the batches' record order (``pipeline.record_order``); ``batch_size`` is None
        if it varies between batches.
        """

        def read(position: np.int64) -> tuple[np.ndarray, np.ndarray]:
            return self.read(order(int(position)))

        def targets_at(position: tf.Tensor) -> dict[str, tf.Tensor]:
            tensors = tf.numpy_function(read, [position], [tf.int32, tf.float32])
            for values in tensors:
                values.set_shape([batch_size, self.predictions, self.targets])
            return dict(zip((CLASSES, PROBABILITIES), tensors))

        targets = dataset_of_positions(start_position, None, targets_at)
        joined = tf.data.Dataset.zip((batches, targets))
        return joined.map(lambda features, of_teacher: {**features, **of_teacher})


@functools.lru_cache(maxsize=_MOST_OPEN_PIECES)
def _open_piece(files: TargetFiles, piece: int) -> np.ndarray:
    """Maps the framed records of a piece: uint8 [N, bytes]."""
    path, count = files.path(piece), len(files.records_of(piece))
    try:
        return np.memmap(path, np.uint8, "r").reshape(count, files.frame_bytes)
    except (OSError, ValueError) as error:
        raise _damaged(path, first_line(error)) from error


def _damaged(path: Path, problem: str) -> UserError:
    return UserError(
        f"the teacher's targets {path} are damaged ({problem}); delete the file to have them "
        "computed again."
    )


def make_targets(
    task: DistillationTask,
    teacher: Teacher,
    records: PretrainingRecords,
    directory: Path,
    run: Run,
    arithmetic: Arithmetic,
) -> TargetFiles:
    """Computes the targets that are missing from a directory, on all ranks together. Collective.

    ``records`` are made for the teacher's network. The directory is on a disk that all ranks share;
    a dry run writes nothing. Raises UserError if records have no stored masks, if the directory has
    targets of another teacher, of other records or settings, if the disk is too full, or (before
    anything is written) if ranks have different records.
    """
    info, classes, targets = records.info, task.student.num_classes, task.most_targets()
    if classes is None or targets is None:
        raise UserError("--cache_teacher needs a task with a number of classes; drop the flag.")
    # Records without masks, which have no number of predictions, are refused below.
    files = TargetFiles(directory, info.num_records, info.max_predictions or 0, targets, classes)
    contents = {
        "data_sha256": info.data_digest,
        "teacher_sha256": teacher.weights_digest,
        "num_records": files.num_records,
        "predictions": files.predictions,
        "targets": targets,
        "temperature": task.settings.temperature,
        "min_target_probability": task.settings.min_target_probability,
    }
    # Each rank computes the pieces of its own records.
    check_same_on_all_ranks(
        run.ranks, {_MESSAGE_NAMES.get(name, name): value for name, value in contents.items()}
    )
    if not info.masked:
        raise UserError(
            f"--cache_teacher needs records that store their masks, but those of {info.first_file} "
            "are masked again in every epoch; make records with stored masks, or drop the flag."
        )
    run.message(
        f"the teacher's targets of {files.num_records} records take {_gib(files.num_bytes)} GiB in "
        f"{directory}"
    )
    if run.settings.dry_run:
        return files
    with contextlib.ExitStack() as held:
        of_chief = None
        if run.ranks.is_chief:
            make_output_dir(directory, flag="cache_teacher")
            held.enter_context(hold_directory(directory, flag="cache_teacher"))
            _check_contents(directory, contents)
            of_chief = files.missing()
            _check_space(files, len(of_chief))
            write_sealed_json(directory / MANIFEST_NAME, contents)
        missing = run.ranks.broadcast(of_chief)
        if missing:
            run.message(f"the teacher computes {len(missing)} of {files.num_pieces} pieces")
        compute = functools.partial(_computed, files, task, teacher, records, run, arithmetic)
        resumable_map(missing, compute, files, run.ranks)
        if any(run.ranks.gather(bool(files.missing()))):
            raise UserError(
                f"--cache_teacher={directory}: a rank does not see the targets that another one "
                "wrote; give a directory on a disk that all hosts share."
            )
    return files


def _check_contents(directory: Path, contents: Mapping[str, Any]) -> None:
    path = directory / MANIFEST_NAME
    if not path.is_file():
        return
    advice = f"delete {directory} to have them computed again, or restore the file"
    before = read_sealed_json(path, what="teacher's targets", advice=advice)
    different = [name for name, value in contents.items() if before.get(name) != value]
    if different:
        raise UserError(
            f"--cache_teacher={directory} has targets with another {different[0]} "
            f"({before.get(different[0])}, not {contents[different[0]]}); choose another directory "
            "or delete this one."
        )


def _check_space(files: TargetFiles, num_missing: int) -> None:
    needed = files.num_bytes * num_missing // max(1, files.num_pieces)
    free = shutil.disk_usage(files.directory).free
    if needed > free:
        raise UserError(
            f"--cache_teacher={files.directory} needs {_gib(needed)} GiB more, but its disk has "
            f"{_gib(free)} GiB free; choose another disk, or a smaller --top_k_targets."
        )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.3g}"


def _computed(
    files: TargetFiles,
    task: DistillationTask,
    teacher: Teacher,
    records: PretrainingRecords,
    run: Run,
    arithmetic: Arithmetic,
    pieces: Sequence[int],
) -> Iterator[np.ndarray]:
    """The targets of all records of each of this rank's pieces, [N, P, K] of ``files.dtype``.

    ``pieces`` are in ascending order.
    """
    ranks, options, progress = run.ranks, arithmetic.options, None
    if ranks.is_chief:
        total = sum(len(files.records_of(piece)) for piece in pieces) * ranks.world_size
        progress = Progress("teacher's targets", total, "records")

    def indices(position: int) -> np.ndarray:
        piece, batch = divmod(position, _BATCHES_OF_A_PIECE)
        first = pieces[piece] * _RECORDS_OF_A_PIECE + batch * _BATCH_SIZE
        # Only the last piece may be shorter; rows read beyond its end are discarded.
        return np.minimum(np.arange(first, first + _BATCH_SIZE), files.num_records - 1)

    def soft_targets(network: Network) -> SoftTargets:
        outputs = task.teacher.outputs(network.variables, features, options)
        return task.soft_targets(outputs, features, options, most=files.targets)

    with tf.Graph().as_default():
        read = record_reader(records, indices, batch_size=_BATCH_SIZE).read
        batches = dataset_of_positions(0, len(pieces) * _BATCHES_OF_A_PIECE, read)
        # A one-shot iterator would fail under --deterministic, which requires a seed for it.
        iterator = tf.data.make_initializable_iterator(batches)
        features = iterator.get_next()
        network = create_network(task.teacher, options)
        if ranks.is_chief:
            initialise_from_checkpoint(teacher.path, network.variables.all())
        targets = network.forward(soft_targets)
        creator = tf.train.ChiefSessionCreator(config=session_config(arithmetic.session))
        with tf.train.MonitoredSession(creator, ranks.broadcast_hooks()) as session:
            session.run(iterator.initializer)
            for piece in pieces:
                values = np.empty([len(files.records_of(piece)), *files.shape], files.dtype)
                for first in range(0, len(values), _BATCH_SIZE):
                    rows = values[first : first + _BATCH_SIZE]
                    for name, column in zip((CLASSES, PROBABILITIES), session.run(targets)):
                        rows[name] = column.reshape([-1, *files.shape])[: len(rows)]
                    if progress is not None:
                        progress.advance(len(rows) * ranks.world_size)
                yield values
