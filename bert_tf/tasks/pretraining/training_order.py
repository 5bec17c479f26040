"""The records of each update in pre-training, and the positions to which they are truncated."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_tf.input.order import GlobalBatchSlice
from bert_tf.input.pipeline import PretrainingRecords, record_order
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.train.run import Run
from bert_tf.tuning.session import session_config
from bert_tf.util.digest import digest_of

if TYPE_CHECKING:
    from bert_tf.input.length_buckets import LengthBuckets
    from bert_tf.input.mixture import Mixture

_NOTHING_TO_GAIN = 0.98


@dataclasses.dataclass(frozen=True)
class TrainingOrder:
    """The order of the records, which is the same for any number of ranks.

    Attributes:
      num_records: N.
      max_seq_length: length of a record.
      seed: the seed of the order.
      lengths: integers [N], the positions that each record needs, for batches of similar length;
        None for random batches of whole records.
      mixture: the fractions of their sources; None if all records are equally frequent.
      few_lengths: as in :class:`~bert_tf.input.length_buckets.LengthBuckets`.
    """

    num_records: int
    max_seq_length: int
    seed: int
    lengths: np.ndarray | None = None
    mixture: Mixture | None = None
    few_lengths: bool = False

    def buckets(self, batch: GlobalBatchSlice) -> LengthBuckets | None:
        """The batches of similar length; None for random batches."""
        if self.lengths is None:
            return None
        from bert_tf.input.length_buckets import LengthBuckets

        return LengthBuckets(
            self.lengths,
            global_batch_size=batch.global_batch_size,
            seed=self.seed,
            max_length=self.max_seq_length,
            origin=batch.origin,
            sequence=self.mixture.sequence if self.mixture else None,
            few_lengths=self.few_lengths,
        )

    def records_at(self, batch: GlobalBatchSlice) -> Callable[[int], np.ndarray]:
        """A function from a position to the indices of a rank's records there."""
        buckets = self.buckets(batch)
        return record_order(batch, self.num_records, self.mixture, seed=self.seed, buckets=buckets)

    def typical_lengths(self, batch: GlobalBatchSlice) -> list[int]:
        """The sequence lengths of typical batches."""
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
        mixture=records.mixture,
        few_lengths=bool(run.runtime.use_xla),
    )


def report_lengths(lengths: Sequence[int], max_seq_length: int, run: Run) -> None:
    """Reports how much shorter than whole records the batches of these typical lengths are."""
    share = statistics.fmean(lengths) / max_seq_length
    text = f"batches of similar length have {share:.1%} of the positions of whole records"
    if share > _NOTHING_TO_GAIN:
        text += "; the records are full, and --length_buckets gains nothing"
    run.message(text)


def shared_lengths(records: PretrainingRecords, run: Run) -> np.ndarray:
    """The positions that each record needs: uint16 [N], the same on all ranks. Collective.

    One rank per host counts and saves the lengths that are missing; hosts that share a disk divide
    the files. If nothing can be written, as in a dry run, each rank counts for itself. Raises
    UserError if a record is damaged or ranks find different lengths.
    """
    from bert_tf.input.record_lengths import keep_missing_lengths, lengths_of_records
    from bert_tf.ranks.agreement import check_same_on_all_ranks
    from bert_tf.ranks.host_work import on_each_host

    ranks = run.ranks
    # The first session of a process determines its threads and GPUs.
    config = session_config(run.session_settings())
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
    digest = digest_of(lengths.tobytes())
    check_same_on_all_ranks(ranks, {"the lengths of the training records": digest})
    return lengths
