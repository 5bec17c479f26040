"""Examines a planned run of a script: what would end it, and what looks unwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from absl import flags

from bert_tf.doctor.findings import Findings
from bert_tf.doctor.parts import open_parts
from bert_tf.doctor.planned import PlannedRun
from bert_tf.doctor.records import judge_records, judge_size_for_gpus
from bert_tf.doctor.rehearsal import rehearse
from bert_tf.doctor.schedule import judge_updates
from bert_tf.doctor.training_scripts import SCRIPTS
from bert_tf.ranks.planned import PlannedRanks
from bert_tf.tasks.question_answering.settings import SquadSettings
from bert_tf.train.start_point import StartPoint
from bert_tf.util.digest import digest_of_file
from bert_tf.util.directory_lock import LOCK_NAME, named_holder
from bert_tf.util.errors import UserError


def examine(
    script: str, values: flags.FlagValues, *, num_ranks: int, ranks_per_host: int
) -> Findings:
    """Examines a run of ``script`` with parsed flags; raises UserError for a plan of phases.

    A run that would fail is examined part by part, to find its other mistakes too.
    """
    _require_no_phases(values)
    findings, of_run = Findings(), Findings()
    if num_ranks > 1 and not values.horovod:
        findings.warn(
            "flags",
            f"--num_ranks={num_ranks}, but the run has no --horovod, so each process would train "
            "by itself; add it",
        )
        changed: Any = values  # flags have no types of their own
        changed.horovod = True
    ranks = PlannedRanks(num_ranks, local_size=min(ranks_per_host, num_ranks))
    settings = of_run.attempt("flags", SCRIPTS[script].settings, values)
    run = settings and of_run.attempt("whole run", rehearse, of_run, script, settings, ranks)
    run = run or open_parts(findings, script, values, ranks)
    findings.extend(of_run)
    if run.output_dir is not None:
        _judge_output(findings, run.output_dir, run.start)
    _judge_model(findings, values, run)
    judge_updates(findings, values, run)
    if isinstance(settings, SquadSettings):
        _judge_questions(findings, settings)
    return findings


def _judge_output(findings: Findings, directory: Path, start: StartPoint) -> None:
    """Examines the contents of the output directory."""
    part = "output directory"
    if not directory.is_dir():
        findings.fine(part, f"{directory} does not exist yet")
        return
    holder = named_holder(directory)
    if holder is not None and holder.may_be_alive:
        findings.warn(
            part,
            f"{directory} is in use by {holder}; wait for it to end, or choose another directory",
        )
    elif holder is not None:
        findings.hint(part, f"{directory} was last used by {holder}, which did not exit normally")
    if start.checkpoint is not None and not start.is_elsewhere:
        findings.fine(part, f"the run resumes at step {start.step:,} of {start.checkpoint}")
    elif any(path.name != LOCK_NAME for path in directory.iterdir()):
        findings.hint(part, f"{directory} is not empty, but has no checkpoint to resume from")


def _judge_model(findings: Findings, values: flags.FlagValues, run: PlannedRun) -> None:
    """Examines the network, its weights, and the records."""
    if run.config is not None:
        _judge_positions(findings, run, run.config.max_position_embeddings)
    if run.config is not None and run.is_pretraining and run.is_new:
        judge_size_for_gpus(findings, run.config.vocab_size)
    judge_records(findings, run)
    is_compared = not any(part == "checkpoint" and grade for grade, part, _ in findings)
    if run.is_new and values.do_train and not run.is_pretraining:
        findings.warn(
            "checkpoint",
            "no weights are given, so fine-tuning starts from random ones; give --init_checkpoint",
        )
    elif not run.is_new and run.vocabulary is not None and is_compared:
        findings.fine("checkpoint", f"its vocabulary is that of {run.vocabulary.source}")


def _judge_positions(findings: Findings, run: PlannedRun, positions: int) -> None:
    length = run.max_seq_length
    if length < positions and run.is_new and run.is_pretraining:
        findings.hint(
            "configuration",
            f"--max_seq_length={length} leaves the positions up to "
            f"max_position_embeddings={positions} untrained; a later phase has to train them",
        )
    elif length <= positions:
        findings.fine("configuration", f"{length} of the network's {positions} positions are used")


def _judge_questions(findings: Findings, settings: SquadSettings) -> None:
    train, predict = settings.train_file, settings.predict_file
    if train and predict and digest_of_file(train) == digest_of_file(predict):
        findings.warn(
            "questions",
            f"{predict} are the training questions, so the scores do not cover unseen ones; give "
            "another --predict_file",
        )


def _require_no_phases(values: flags.FlagValues) -> None:
    if "phases" in values and values.phases:
        first = values.phases.split(",")[0].strip()
        raise UserError(
            f"--phases={values.phases} names several runs; examine each by itself, with "
            f"--flagfile={first} in place of --phases (the run itself checks all of them before "
            "the first one starts)."
        )
