"""Checks a checkpoint to start or resume from against the model, before anything is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import check_sharding
from bert_tf.model.heads import Head
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Task, create_network
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.train.job import RunModel
from bert_tf.train.plan import Plan
from bert_tf.train.run import Run
from bert_tf.train.trainer import create_run_state
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.update.loss_scale import SCALE
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike


def check_start(run: Run, model: RunModel, plan: Plan, arithmetic: Arithmetic) -> None:
    """Compares network, vocabulary and variables with the checkpoint that the run starts from.

    On rank 0 only, which reports what is loaded from --init_checkpoint and what could not be
    compared. Raises UserError if the checkpoint cannot be used, if there is nothing to evaluate, or
    if settings exclude each other.
    """
    check_sharding(plan.requested, run.runtime.communication)
    if not run.ranks.is_chief:
        return
    for prefix, checkpoint in model.frozen.items():
        _check_frozen(checkpoint, model.task, prefix)
    if run.start.checkpoint is not None:
        with _explained_same_directory(run):
            _check_resumed(run.start.checkpoint, run, model, plan, arithmetic.scales_loss)
    elif model.initial.checkpoint:
        _check_initial(model.initial.checkpoint, run, model)
    else:
        check_trains(run)


def check_model_files(run: Run, config_file: PathLike | None, distillation: Any) -> None:
    """Raises UserError for malformed files of a model or its teacher, before data are read."""
    if not run.ranks.is_chief:
        return
    weights = run.start.checkpoint or run.settings.start.init_checkpoint
    (ModelDirectory.of(weights) if weights else ModelDirectory()).with_config_file(config_file)
    if distillation is not None and run.settings.do_train:
        weights, given = distillation.teacher_checkpoint, distillation.teacher_config_file
        require_checkpoint(weights, flag="teacher_checkpoint")
        ModelDirectory.of(weights).with_config_file(given, flag="teacher_config_file")


@contextlib.contextmanager
def _explained_same_directory(run: Run) -> Iterator[None]:
    """Explains an error caused by giving the directory of --init_checkpoint as --output_dir."""
    try:
        yield
    except UserError as error:
        given, output_dir = run.settings.start.init_checkpoint, run.settings.output_dir
        if given and output_dir.resolve() in (Path(given).resolve(), Path(given).resolve().parent):
            reason = str(error).rstrip(".")
            raise UserError(
                f"--output_dir={output_dir} is the directory of --init_checkpoint={given}, so the "
                "run would resume from the checkpoint there rather than start a new one; give "
                f"another --output_dir for a new model ({reason})."
            ) from error
        raise


def check_trains(run: Run) -> None:
    """Raises UserError if a run has no weights and does not train."""
    if not run.settings.do_train:
        raise UserError(
            f"{run.settings.output_dir} contains no checkpoint; train first, or give "
            "--init_checkpoint."
        )


def check_has_heads(checkpoint: PathLike, missing: Sequence[Head], run: Run) -> None:
    """Raises UserError if a run only evaluates a network, but some of its heads are missing."""
    if missing and not run.settings.do_train:
        names = " and no ".join(head.name for head in missing)
        raise UserError(
            f"{checkpoint} has no {names}, so there is nothing to evaluate yet; train with "
            "--do_train first."
        )


def _check_frozen(checkpoint: str, task: Task, prefix: str) -> None:
    """Compares a frozen network's variables, named ``prefix/...``, with those in its checkpoint."""
    from bert_tf.checkpoint import loading

    start = f"{prefix}/"
    found = (spec for spec in task.specs() if spec.name.startswith(start) and not spec.trainable)
    shapes = {spec.name[len(start) :]: spec.shape for spec in found}
    source, report = loading.check_initial(checkpoint, shapes)
    source.check_finite(report.restored)


def _check_resumed(checkpoint: str, run: Run, model: RunModel, plan: Plan, has_scale: bool) -> None:
    from bert_tf.checkpoint import loading
    from bert_tf.model_directory.complete import other_vocabulary

    # Given the checkpoint's path, other weights in the directory are ignored.
    files = ModelDirectory.of(checkpoint)
    problem = ""
    if files.config is not None:
        differences = ", ".join(files.config.differences(model.config).function.values())
        if differences:
            problem = f"{files.config_file} describes a different network: {differences}"
    uncompared: list[str] = []
    if not problem:
        problem, uncompared = other_vocabulary(files, model.vocabulary)
    if problem:
        raise UserError(
            f"cannot resume from {checkpoint}: {problem}; use the configuration and vocabulary "
            "that the model was trained with, or choose another --output_dir."
        )
    notes = []
    is_new_run = run.start.is_elsewhere and run.settings.start.reset_step
    if run.start.record is None and run.settings.do_train and not is_new_run:
        notes.append("there is no run.json of the last start, so changes since then are unknown")
    with tf.Graph().as_default():
        network = create_network(model.task, ForwardOptions())
        tf.train.get_or_create_global_step()
        if run.settings.do_train:
            create_run_state(network, plan)
        report = loading.check_compatible(checkpoint, tf.global_variables())
    is_dynamic = has_scale and run.runtime.numerics.loss_scale.static is None
    if run.settings.do_train and is_dynamic and SCALE not in report.run_state:
        initial = run.runtime.numerics.loss_scale.initial
        notes.append(f"{checkpoint} has no loss scale, so it starts at {initial:g}")
    _remark_on_weights(run, uncompared)
    for note in notes:
        run.message(note)


def _check_initial(checkpoint: str, run: Run, model: RunModel) -> None:
    from bert_tf.checkpoint import loading
    from bert_tf.model_directory.complete import other_vocabulary

    heads = model.task.heads
    source, report = loading.check_initial(
        checkpoint,
        {spec.name: spec.shape for spec in model.task.specs() if spec.trainable},
        allowed_fresh=run.settings.start.allowed_fresh,
        heads=heads,
        config=model.config,
        layers=model.initial.layers,
    )
    source.check_finite(report.restored)
    missing = loading.missing_heads(report, heads, run.settings.start.allowed_fresh)
    check_has_heads(report.checkpoint, missing, run)
    problem, uncompared = other_vocabulary(source.files, model.vocabulary)
    if problem:
        raise UserError(
            f"cannot start from {source.path}: {problem}; use the vocabulary of the checkpoint and "
            "data made with it, or another checkpoint."
        )
    run.report(report.summary(), part="checkpoint")
    _remark_on_weights(run, uncompared)


def _remark_on_weights(run: Run, sentences: Sequence[str]) -> None:
    for sentence in sentences:
        run.remark(sentence, part="checkpoint")
