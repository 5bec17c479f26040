"""The data of a pre-training run: its records, opened and checked, and the batches made of them."""

from __future__ import annotations

import dataclasses
import socket
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.config.masking import MaskingOptions
from bert_tf.durable.manifest import require_listed_files
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.input.pipeline import PretrainingRecords, record_order, training_dataset
from bert_tf.model.config import BertConfig
from bert_tf.records.info import RecordInfo, RecordVocabulary, inspect_records
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.tasks.pretraining.task import ObjectiveTask
from bert_tf.text.tokenizer_files import Vocabulary
from bert_tf.train.job import TrainingData
from bert_tf.train.plan import Plan
from bert_tf.train.run import Run
from bert_tf.tuning.arithmetic import session_config
from bert_tf.util.digest import DIGEST_KEY, EVAL_DIGEST_KEY, VOCABULARY_DIGEST_KEY, digest_of
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files

if TYPE_CHECKING:
    from bert_tf.input.length_buckets import LengthBuckets
    from bert_tf.input.masking import MaskingSettings, MaskShares
    from bert_tf.input.mixture import Mixture
    from bert_tf.tasks.distillation.kept_targets import TargetFiles

_GB = 1e9
_NOTHING_TO_GAIN = 0.98


class OpenRecords(NamedTuple):
    """Record files, opened, and their description; ``mixture`` is None without weights."""

    record_set: RecordSet
    info: RecordInfo
    mixture: Mixture | None = None

    @property
    def epoch(self) -> int:
        """Number of sequences in an epoch; that of a mixture ends with its first source."""
        return self.mixture.epoch if self.mixture else self.info.num_records


@dataclasses.dataclass(frozen=True)
class RunRecords:
    """The opened records of a run.

    Attributes:
      train: training records; None without training.
      held_out: held-out records; None without evaluation.
      masking: how to mask records that store no masks; None if all records do.
      final_masked_lm_prob: as in ``DataSettings``.
    """

    train: OpenRecords | None
    held_out: OpenRecords | None
    masking: MaskingSettings | None
    final_masked_lm_prob: float | None = None

    @property
    def infos(self) -> list[RecordInfo]:
        """The descriptions of all records."""
        return [opened.info for opened in (self.train, self.held_out) if opened is not None]

    @property
    def pair_tasks(self) -> tuple[str, ...]:
        """The tasks of the sentence pairs in all records (see ``RecordInfo.pair_tasks``)."""
        return tuple(sorted({task for info in self.infos for task in info.pair_tasks}))

    @property
    def vocabulary(self) -> RecordVocabulary | None:
        """The vocabulary of all records; None if no manifest names one."""
        return next((info.vocabulary for info in self.infos if info.vocabulary), None)

    def check_positions(self, config: BertConfig, whose: str = "the model's") -> None:
        """Raises UserError for records too long for a network; ``whose`` names it in messages."""
        for info in self.infos:
            config.check_length(
                info.seq_length,
                f"the records in {info.first_file} have {info.seq_length} tokens,",
                whose=whose,
                advice="make shorter records or use another model",
            )

    def for_network(
        self, opened: OpenRecords, config: BertConfig, copies: Mapping[Path, Path] | None = None
    ) -> PretrainingRecords:
        """Some of the records, to train or evaluate a network on, read from ``copies`` if given."""
        record_set, info, mixture = opened
        if copies:
            record_set = RecordSet([copies[file.path] for file in record_set.files])
        sizes = config.vocab_size, config.type_vocab_size
        return PretrainingRecords(record_set, info, *sizes, self.masking, mixture)

    def copied_to_local_disks(
        self, directory: Path, most_gb: float | None, run: Run
    ) -> dict[Path, Path]:
        """Copies the records to a disk of each host's own: file -> copy on this host. Collective.

        A host without room for them reads the originals, {}, and warns; batches are the same.
        Raises UserError on all ranks if the cache cannot be written or records are damaged.
        """
        from bert_tf.ranks.host_work import on_each_host
        from bert_tf.records.local_cache import LocalCopies, NoRoomError, local_copies

        opened = [one for one in (self.train, self.held_out) if one is not None]
        files = {file.path: file for one in opened for file in one.record_set.files}

        def copy() -> LocalCopies | str:
            most = None if most_gb is None else int(most_gb * _GB)
            try:
                return local_copies(list(files.values()), directory, most_bytes=most)
            except NoRoomError as error:
                return str(error)

        by_host = on_each_host(run.ranks, copy)
        for host, copied in by_host.items():
            if isinstance(copied, str):
                run.warn(
                    f"host {host} reads the original records, not copies in --local_cache_dir: "
                    f"{copied}"
                )
            else:
                how = "copied now" if copied.copied_bytes else "from an earlier run"
                run.message(f"host {host} reads copies of the records, {how}: {copied.directory}")
        mine = by_host[socket.gethostname()]
        return {} if isinstance(mine, str) else dict(zip(files, mine.files))

    def ledger_entries(self, given: Vocabulary | None) -> dict[str, object]:
        """The ledger's entries on the data.

        ``given`` is the vocabulary of records whose manifests do not name it; None if unknown.
        """
        train, held_out = self.train, self.held_out
        vocabulary_digest = given.digest if given else None
        if self.vocabulary is not None:  # of this rank's records; ranks compare it
            vocabulary_digest = self.vocabulary.entry.digest
        return {
            DIGEST_KEY: train.info.data_digest if train else "none",
            EVAL_DIGEST_KEY: held_out.info.data_digest if held_out else "none",
            VOCABULARY_DIGEST_KEY: vocabulary_digest,
            "tokenizer": self.vocabulary.entry.kind if self.vocabulary else None,
            "train_records": len(train.record_set) if train else 0,
            "eval_records": len(held_out.record_set) if held_out else 0,
            "sentence_pairs": ", ".join(self.pair_tasks),
            **self._masking_entries(),
            **({"mixture": train.mixture.ledger_entry()} if train and train.mixture else {}),
        }

    def _masking_entries(self) -> dict[str, object]:
        if self.masking is None:
            return {"masking": "stored"}
        # If the training records store masks, the held-out records are the ones without them.
        is_stored = self.train is not None and self.train.info.masked
        masks = self.masking.options
        return {
            "masking": "stored, but drawn for held-out records"
            if is_stored
            else "at training time",
            **masks.parameters(),
            "ngram": masks.ngram,
            "final_masked_lm_prob": self.final_masked_lm_prob,
        }


def open_run_records(settings: PretrainingSettings) -> RunRecords:
    """Opens the records that a run uses.

    Raises UserError if they are damaged or do not match each other or the settings.
    """
    train = held_out = None
    data = settings.data
    if settings.run.do_train:
        train = _open_records(data.train_files, data.train_patterns, settings)
    if settings.run.evaluation.do_eval:
        held_out = _open_records(data.eval_files, data.eval_patterns, settings)
    infos = [opened.info for opened in (train, held_out) if opened is not None]
    if settings.next_sentence:
        check_pairs(infos)
    if len({info.vocabulary.entry.digest for info in infos if info.vocabulary}) > 1:
        raise UserError(
            f"the held-out records in {infos[1].first_file} have a different vocabulary than the "
            f"training records in {infos[0].first_file}; give records with the same vocabulary."
        )
    final = settings.data.final_masked_lm_prob
    if final is not None and train is not None and train.info.masked:
        raise UserError(
            f"--final_masked_lm_prob={final:g}: the records in {train.info.first_file} store their "
            "masks; make them with --masking=dynamic, or drop the flag."
        )
    masks = settings.data.masks
    masking = _masking(masks, infos)
    for name in masks.together:
        if name != "do_whole_word_mask" and infos and masking is None:
            raise UserError(
                f"{masks.given(name)}: the records in {infos[0].first_file} store their masks; "
                "give the flag to data_prep.create_pretraining_data, or drop it."
            )
    return RunRecords(train, held_out, masking, final)


def check_pairs(infos: Sequence[RecordInfo]) -> None:
    """Raises UserError unless the pair labels of all records are for the same task."""
    if not all(info.next_sentence for info in infos):
        raise UserError(
            "the records were made without next sentences; give --nsp=false, or make them again "
            "with --nsp=true."
        )
    if len({task for info in infos for task in info.pair_tasks}) > 1:
        files = " and ".join(sorted({str(info.first_file) for info in infos}))
        raise UserError(
            f"the records in {files} are of two tasks, some for next sentences and some for the "
            "sentence order (--sentence_order); give records of one of them, or --nsp=false."
        )


def _open_records(
    files: Sequence[Path], patterns: str, settings: PretrainingSettings
) -> OpenRecords:
    writes = not settings.run.dry_run
    if ":" in patterns:  # weights, or a colon in a path
        from bert_tf.input.mixture import open_sources

        return OpenRecords(*open_sources(patterns, seed=settings.run.seed, keep_offsets=writes))
    require_listed_files(patterns)
    files = files or expand_record_files(patterns, flag="input_file")
    records = RecordSet(files, keep_offsets=writes)
    return OpenRecords(records, inspect_records(records))


def _masking(masks: MaskingOptions, infos: list[RecordInfo]) -> MaskingSettings | None:
    """The settings for masking at training time; None if all records store masks."""
    unmasked = [info.vocabulary for info in infos if info.vocabulary and not info.masked]
    if not unmasked:
        return None
    from bert_tf.input.masking import MaskingSettings

    entry = unmasked[0].entry
    return MaskingSettings(masks, entry.size, entry.special_ids)


class Lengths(NamedTuple):
    """The lengths of records: the tokens of a sequence, and the most predictions in one."""

    max_seq_length: int
    max_predictions: int


@dataclasses.dataclass(frozen=True)
class TrainingBatches(TrainingData):
    """The batches of a training run; their records are the same for any number of ranks.

    Attributes:
      settings: what the user requested.
      task: the task, with the network's configuration.
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
    task: ObjectiveTask
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
        last_step, typical = plan.last_step, self.typical_lengths(run, plan)
        compute = {
            "model_flops_per_sequence": self.flops_of([(1, None)], typical),
            "model_flops": self.flops_of(run.start.parts(plan.batch, last_step), typical),
        }
        if self.lengths is not None:
            compute["positions_per_sequence"] = statistics.fmean(typical)
        mixture = self.records.mixture
        if mixture is None:
            return {"compute": compute}
        consumed = run.start.total(plan.batch, last_step)
        return {"compute": compute, **mixture.ledger_sections(consumed)}

    def typical_lengths(self, run: Run, plan: Plan) -> Sequence[int]:
        """The lengths of sequences in typical batches; not meaningful with a length ramp."""
        buckets = self._buckets(run, run.batch_slice(plan.batch))
        return [self.max_seq_length] if buckets is None else buckets.typical_lengths()

    def flops_of(self, parts: Iterable[tuple[float, int | None]], typical: Sequence[int]) -> float:
        """FLOPs of training on (number of sequences, length) pairs, as in ``model.flops``.

        Length None stands for a sequence of ``typical`` lengths; with a length ramp, of the
        longest.
        """
        mean = statistics.fmean(map(self._flops_of_length, typical))
        return sum(n * (self._flops_of_length(length) if length else mean) for n, length in parts)

    def report_lengths(self, run: Run, plan: Plan) -> None:
        """Reports how much shorter than whole records the batches of similar length are."""
        if self.lengths is None:
            return
        share = statistics.fmean(self.typical_lengths(run, plan)) / self.max_seq_length
        text = f"batches of similar length have {share:.1%} of the positions of whole records"
        if share > _NOTHING_TO_GAIN:
            text += "; the records are full, and --length_buckets gains nothing"
        run.message(text)

    def _flops_of_length(self, length: int) -> float:
        predictions = self.max_predictions
        if self.settings.optimization.length_ramp is not None:
            from bert_tf.input.cutting import cut_predictions

            predictions = cut_predictions(predictions, self.max_seq_length, length)
        return self.task.training_flops(length=length, predictions=predictions)

    def _shares(self, plan: Plan) -> MaskShares | None:
        data = self.settings.data
        if data.final_masked_lm_prob is None:
            return None
        from bert_tf.input.masking import MaskShares

        return MaskShares(
            data.masks.masked_lm_prob,
            data.final_masked_lm_prob,
            plan.schedule.total_steps,
            plan.batch.offset,
        )

    def _order(self, run: Run, part: GlobalBatchSlice) -> Callable[[int], np.ndarray]:
        """A function from a position to the indices of a rank's records there."""
        seed, buckets = self.settings.run.seed, self._buckets(run, part)
        return record_order(self.records, part, seed=seed, buckets=buckets)

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
