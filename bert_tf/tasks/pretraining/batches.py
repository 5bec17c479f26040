"""The batches of pre-training: the records of each update, their lengths and their FLOPs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.input.order import GlobalBatchSlice
from bert_tf.input.pipeline import PretrainingRecords, record_order, training_dataset
from bert_tf.model.config import BertConfig
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.tasks.pretraining.task import objective_of
from bert_tf.train.job import TrainingData
from bert_tf.train.plan import Plan
from bert_tf.train.run import Run
from bert_tf.tuning.arithmetic import session_config
from bert_tf.util.digest import digest_of

if TYPE_CHECKING:
    from bert_tf.input.length_buckets import LengthBuckets
    from bert_tf.input.masking import MaskShares
    from bert_tf.tasks.distillation.kept_targets import TargetFiles

_NOTHING_TO_GAIN = 0.98


class Lengths(NamedTuple):
    """The lengths of records: the tokens of a sequence, and the most predictions in one."""

    max_seq_length: int
    max_predictions: int


@dataclasses.dataclass(frozen=True)
class Effort:
    """The floating-point operations of training, as defined in ``model.flops``.

    ``lengths`` are those of sequences in typical batches; not meaningful with a length ramp.
    """

    batches: TrainingBatches
    lengths: Sequence[int]

    @property
    def per_sequence(self) -> float:
        """FLOPs of a typical sequence; with a length ramp, of the longest."""
        return statistics.fmean(map(self._of_length, self.lengths))

    def total(self, parts: Iterable[tuple[float, int | None]]) -> float:
        """FLOPs of (number of sequences, length) pairs; length None stands for typical ones."""
        typical = self.per_sequence
        return sum(n * (self._of_length(length) if length else typical) for n, length in parts)

    def _of_length(self, length: int) -> float:
        batches, predictions = self.batches, self.batches.max_predictions
        if batches.settings.optimization.length_ramp is not None:
            from bert_tf.input.cutting import cut_predictions

            predictions = cut_predictions(predictions, batches.max_seq_length, length)
        objective = objective_of(batches.settings)
        return objective.training_flops(batches.config, length=length, predictions=predictions)


@dataclasses.dataclass(frozen=True)
class TrainingBatches(TrainingData):
    """The batches of a training run; their records are the same for any number of ranks.

    Attributes:
      settings: what the user requested.
      config: the network's configuration.
      records: the records as they are read, perhaps from copies on a local disk.
      originals: the records under the paths that users know.
      max_seq_length: tokens of a record.
      max_predictions: the most predictions in a record.
      num_records: number of sequences in an epoch.
      lengths: integers [N], the positions that each record needs, for batches of similar length;
        None for random batches of whole records.
      targets: cached soft targets to join to the records; None if there are none.
    """

    settings: PretrainingSettings
    config: BertConfig
    records: PretrainingRecords
    originals: RecordSet
    max_seq_length: int
    max_predictions: int
    num_records: int
    lengths: np.ndarray | None
    targets: TargetFiles | None

    def batches(self, run: Run, plan: Plan) -> tf.data.Dataset:
        """See :class:`bert_tf.train.job.TrainingData`."""
        part, start_position = run.batch_slice(plan.batch), run.start.data_position
        batches = training_dataset(
            self.records,
            part,
            start_position=start_position,
            seed=self.settings.run.seed,
            lengths=plan.batch.length_ramp(),
            shares=self._shares(plan),
            buckets=self._buckets(run, part),
        )
        if self.targets is None:
            return batches
        return self.targets.joined_to(
            batches,
            self._order(run, part),
            batch_size=part.constant_size,
            start_position=start_position,
        )

    def records_at(self, run: Run, plan: Plan, position: int) -> list[tuple[str, int]]:
        """See :class:`bert_tf.train.job.TrainingData`."""
        indices = self._order(run, run.batch_slice(plan.batch))(position)
        return self.originals.locations(indices.tolist())

    def ledger_sections(self, run: Run, plan: Plan) -> Mapping[str, Mapping[str, Any]]:
        """The FLOPs, the typical length of batches of similar length, the sources of a mixture."""
        effort = self.effort(run, plan)
        last_step = plan.steps.last_step
        compute = {
            "model_flops_per_sequence": effort.per_sequence,
            "model_flops": effort.total(run.start.parts(plan.batch, last_step)),
        }
        if self.lengths is not None:
            compute["positions_per_sequence"] = statistics.fmean(effort.lengths)
        mixture = self.records.mixture
        if mixture is None:
            return {"compute": compute}
        consumed = run.start.total(plan.batch, last_step)
        return {"compute": compute, **mixture.ledger_sections(consumed)}

    def effort(self, run: Run, plan: Plan) -> Effort:
        """The FLOPs of sequences in batches of a plan."""
        buckets = self._buckets(run, run.batch_slice(plan.batch))
        lengths = [self.max_seq_length] if buckets is None else buckets.typical_lengths()
        return Effort(self, lengths)

    def report_lengths(self, run: Run, plan: Plan) -> None:
        """Reports how much shorter than whole records the batches of similar length are."""
        if self.lengths is None:
            return
        share = statistics.fmean(self.effort(run, plan).lengths) / self.max_seq_length
        text = f"batches of similar length have {share:.1%} of the positions of whole records"
        if share > _NOTHING_TO_GAIN:
            text += "; the records are full, and --length_buckets gains nothing"
        run.message(text)

    def _shares(self, plan: Plan) -> MaskShares | None:
        data = self.settings.data
        if data.final_masked_lm_prob is None:
            return None
        from bert_tf.input.masking import MaskShares

        return MaskShares(
            data.masks.masked_lm_prob,
            data.final_masked_lm_prob,
            plan.steps.num_train_steps,
            plan.batch.offset,
        )

    def _order(self, run: Run, part: GlobalBatchSlice) -> Callable[[int], np.ndarray]:
        """A function from a position to the indices of a rank's records there."""
        return record_order(
            part,
            self.records.info.num_records,
            self.records.mixture,
            seed=self.settings.run.seed,
            buckets=self._buckets(run, part),
        )

    def _buckets(self, run: Run, part: GlobalBatchSlice) -> LengthBuckets | None:
        """The batches of similar length; None for random batches."""
        if self.lengths is None:
            return None
        from bert_tf.input.length_buckets import LengthBuckets

        mixture = self.records.mixture
        return LengthBuckets(
            self.lengths,
            global_batch_size=part.global_batch_size,
            seed=self.settings.run.seed,
            max_length=self.max_seq_length,
            origin=part.origin,
            sequence=mixture.sequence if mixture else None,
            few_lengths=bool(run.runtime.use_xla),
        )


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
