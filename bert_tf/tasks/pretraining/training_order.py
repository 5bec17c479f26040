"""Which records each update of a pre-training has, and to how many positions they are cut."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_tf.input.order import GlobalBatchSlice
from bert_tf.input.pipeline import PretrainingRecords, record_order
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.train.run import Run
from bert_tf.tuning.session import session_config

if TYPE_CHECKING:
    from bert_tf.input.length_buckets import LengthBuckets

_NOTHING_TO_GAIN = 0.98


@dataclasses.dataclass(frozen=True)
class TrainingOrder:
    """The order of the records, the same for every number of ranks.

    Attributes:
      num_records: N.
      max_seq_length: positions of a record.
      seed: of the order.
      lengths: integers [N], the positions that each record needs, for batches of similar length;
        None for random batches of whole records.
    """

    num_records: int
    max_seq_length: int
    seed: int
    lengths: np.ndarray | None = None

    def buckets(self, batch: GlobalBatchSlice) -> LengthBuckets | None:
        """The batches of similar length; None for random ones."""
        if self.lengths is None:
            return None
        from bert_tf.input.length_buckets import LengthBuckets

        return LengthBuckets(
            self.lengths,
            global_batch_size=batch.global_batch_size,
            seed=self.seed,
            max_length=self.max_seq_length,
            origin=batch.origin,
        )

    def records_at(self, batch: GlobalBatchSlice) -> Callable[[int], np.ndarray]:
        """The function from a position to the numbers of a rank's records there."""
        return record_order(
            batch, num_records=self.num_records, seed=self.seed, buckets=self.buckets(batch)
        )

    def typical_lengths(self, batch: GlobalBatchSlice) -> list[int]:
        """The positions of a sequence in typical batches."""
        buckets = self.buckets(batch)
        return [self.max_seq_length] if buckets is None else buckets.typical_lengths()


def training_order(
    settings: PretrainingSettings, records: PretrainingRecords, run: Run
) -> TrainingOrder:
    """The order of ``records``. Collective.

    Raises UserError as :func:`shared_lengths`.
    """
    return TrainingOrder(
        num_records=records.info.num_records,
        max_seq_length=settings.data.max_seq_length,
        seed=settings.run.seed,
        lengths=shared_lengths(records, run) if settings.data.length_buckets else None,
    )


def report_lengths(lengths: Sequence[int], max_seq_length: int, run: Run) -> None:
    """Says how much shorter batches of these typical lengths are than whole records."""
    share = statistics.fmean(lengths) / max_seq_length
    text = f"batches of similar length have {share:.1%} of the positions of whole records"
    if share > _NOTHING_TO_GAIN:
        text += "; the records are full, and --length_buckets gains nothing"
    run.message(text)


def shared_lengths(records: PretrainingRecords, run: Run) -> np.ndarray:
    """The positions that each record needs: uint16 [N], the same on all ranks. Collective.

    One rank of each host counts and keeps what nobody has counted before; hosts on one disk divide
    the files. Where nothing can be written, as in a dry run, each rank counts for itself. Raises
    UserError for a damaged record, and if ranks find different lengths.
    """
    from bert_tf.input.record_lengths import keep_missing_lengths, lengths_of_records
    from bert_tf.ranks.agreement import check_same_on_all_ranks
    from bert_tf.ranks.host_work import on_each_host

    ranks = run.ranks
    # A process's first session decides on its threads and GPUs.
    config = session_config(dataclasses.replace(run.session_settings(), use_xla=False, amp=False))
    if not run.settings.dry_run:
        on_each_host(
            ranks,
            lambda: keep_missing_lengths(
                records,
                begin_at=ranks.rank / ranks.world_size,
                shows_progress=ranks.is_chief,
                session_config=config,
            ),
        )
    lengths = lengths_of_records(records, shows_progress=ranks.is_chief, session_config=config)
    digest = hashlib.sha256(lengths.tobytes()).hexdigest()
    check_same_on_all_ranks(ranks, {"the lengths of the training records": digest})
    return lengths
