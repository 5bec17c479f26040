"""Checks of the initial or resumed checkpoint against the model, before anything is written."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint import loading
from bert_tf.checkpoint.model_files import model_files
from bert_tf.checkpoint.same_model import known_configs, other_vocabulary
from bert_tf.config.settings import OptimizationSettings
from bert_tf.config.sharding import check_sharding
from bert_tf.model.heads import Head
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Task, create_network
from bert_tf.train.context import RunContext
from bert_tf.train.job import Model
from bert_tf.train.plans import batch_plan
from bert_tf.train.trainer import create_run_state
from bert_tf.update.loss_scale import SCALE
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike


def settle_scaling(context: RunContext, optimization: OptimizationSettings) -> OptimizationSettings:
    """Resolves ``scale_steps_by_ranks`` in the settings.

    The steps of a resumed run keep their meaning; those of a new run are scaled with Horovod.
    Raises UserError if the flag contradicts how the run was started, or if that is unknown and the
    run had a different number of ranks.
    """
    requested, recorded = optimization.scale_steps_by_ranks, None
    if context.record is not None:
        recorded = context.record.fact("steps", "scaled_by_ranks", bool)
        if not recorded and context.record.fact("ranks", "world_size", int) == 1:
            recorded = None  # on one rank there is no difference
    elif requested is None and _had_different_batches(context, optimization):
        raise UserError(
            f"{context.start.checkpoint} was trained with a different global batch, and there is "
            "no run.json to show whether its steps are scaled by ranks; give "
            "--scale_steps_by_ranks=true or --scale_steps_by_ranks=false."
        )
    if requested is not None and recorded not in (None, requested):
        meaning = "are scaled by ranks" if recorded else "count the updates of all ranks"
        raise UserError(
            f"--scale_steps_by_ranks={str(requested).lower()}, but the steps of the run to resume "
            f"{meaning} ({context.record.path}), so it would end at a different step; leave out "
            "the flag."
        )
    choices = (requested, recorded, context.runtime.horovod)
    scaled = next(choice for choice in choices if choice is not None)
    return dataclasses.replace(optimization, scale_steps_by_ranks=scaled)


def _had_different_batches(context: RunContext, optimization: OptimizationSettings) -> bool:
    if not context.settings.do_train or optimization.num_train_steps is None:
        return False  # there is no end, or it is given in epochs
    batch = batch_plan(optimization, context.ranks)
    consumed = batch.sequences(0, context.start.data_position)
    return context.start.consumed_sequences not in (None, consumed)


def check_start(context: RunContext, model: Model, optimization: OptimizationSettings) -> None:
    """Compares network, vocabulary and variables with the checkpoint that the run starts from.

    Only rank 0 does so; it reports what is loaded from --init_checkpoint, and what could not be
    compared. Raises UserError for a checkpoint that cannot be used, if there is nothing to
    evaluate, and for settings that exclude each other.
    """
    check_sharding(optimization, context.runtime.communication)
    if not context.ranks.is_chief:
        return
    for prefix, checkpoint in model.frozen.items():
        loading.check_initial(checkpoint, _frozen_shapes(model.task, prefix))
    if context.start.checkpoint is not None:
        with _explained_same_directory(context):
            _check_resumed(context, model, optimization)
    elif context.settings.init_checkpoint:
        _check_initial(context, model)
    else:
        check_trains(context)


@contextlib.contextmanager
def _explained_same_directory(context: RunContext) -> Iterator[None]:
    """Says what is wrong if the model that a run should start from is in its output directory."""
    try:
        yield
    except UserError as error:
        given, output_dir = context.settings.init_checkpoint, context.settings.output_dir
        if given and output_dir.resolve() in (Path(given).resolve(), Path(given).resolve().parent):
            reason = str(error).rstrip(".")
            raise UserError(
                f"--output_dir={output_dir} is the directory of --init_checkpoint={given}, so the "
                "run would resume from the checkpoint there instead of starting anew; give another "
                f"--output_dir for a new model ({reason})."
            ) from error
        raise


def check_trains(context: RunContext) -> None:
    """Raises UserError for a run without weights that does not train any."""
    if not context.settings.do_train:
        raise UserError(
            f"{context.settings.output_dir} contains no checkpoint; train first, or give "
            "--init_checkpoint."
        )


def check_has_heads(checkpoint: PathLike, missing: Sequence[Head], context: RunContext) -> None:
    """Raises UserError for a run that only evaluates a network without some of its heads."""
    if missing and not context.settings.do_train:
        names = " and no ".join(head.name for head in missing)
        raise UserError(
            f"{checkpoint} has no {names}, so there is nothing to evaluate yet; train with "
            "--do_train first."
        )


def _frozen_shapes(task: Task, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a frozen network's variables, as in its own checkpoint."""
    start = f"{prefix}/"
    found = (spec for spec in task.specs() if spec.name.startswith(start) and not spec.trainable)
    return {spec.name[len(start) :]: spec.shape for spec in found}


def _check_resumed(context: RunContext, model: Model, optimization: OptimizationSettings) -> None:
    checkpoint = context.start.checkpoint
    # By the checkpoint's path, so that other weights in the directory are ignored.
    files = model_files(checkpoint)
    problem = ""
    for path, config in known_configs(files):
        differences = ", ".join(config.differences(model.config).function.values())
        if differences and not problem:
            problem = f"{path} describes a different network: {differences}"
    notes: list[str] = []
    if not problem:
        problem, notes = other_vocabulary(files, model.vocabulary)
    if problem:
        raise UserError(
            f"cannot resume from {checkpoint}: {problem}; use the configuration and vocabulary "
            "that the model was trained with, or choose another --output_dir."
        )
    is_new_run = context.start.is_elsewhere and context.settings.reset_step
    if context.record is None and context.settings.do_train and not is_new_run:
        notes.append("there is no run.json of the last start, so changes since then are unknown")
    with tf.Graph().as_default():
        network = create_network(model.task, ForwardOptions())
        tf.train.get_or_create_global_step()
        if context.settings.do_train:
            create_run_state(network, optimization)
        report = loading.check_compatible(checkpoint, tf.global_variables())
    if context.has_dynamic_loss_scale and SCALE not in report.run_state:
        initial = context.runtime.initial_loss_scale
        notes.append(f"{checkpoint} has no loss scale, so it starts at {initial:g}")
    for note in notes:
        context.message(note)


def _check_initial(context: RunContext, model: Model) -> None:
    heads = model.task.heads
    source, report = loading.check_initial(
        context.settings.init_checkpoint,
        {spec.name: spec.shape for spec in model.task.specs() if spec.trainable},
        allowed_fresh=context.settings.allowed_fresh,
        heads=heads,
        config=model.config,
        layers=model.initial_layers,
    )
    missing = loading.missing_heads(report, heads, context.settings.allowed_fresh)
    check_has_heads(report.checkpoint, missing, context)
    problem, notes = other_vocabulary(source.files, model.vocabulary)
    if problem:
        raise UserError(
            f"cannot start from {source.path}: {problem}; use the vocabulary of the checkpoint and "
            "data made with it, or another checkpoint."
        )
    for line in [*report.summary(), *notes]:
        context.message(line)
