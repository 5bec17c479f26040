"""What a run starts from against what it is to train: compared before anything is written."""

from __future__ import annotations

import dataclasses

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint import loading
from bert_tf.checkpoint.model_files import model_files
from bert_tf.checkpoint.same_model import known_configs, other_vocabulary
from bert_tf.config.settings import OptimizationSettings
from bert_tf.errors import UserError
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Task, create_network
from bert_tf.training.context import RunContext
from bert_tf.training.job import Model
from bert_tf.training.start_point import COUNTS
from bert_tf.training.trainer import create_run_state
from bert_tf.update.batch_plan import resolve_batch_plan


def settle_scaling(context: RunContext, optimization: OptimizationSettings) -> OptimizationSettings:
    """The settings with ``scale_steps_by_ranks`` decided.

    The steps of a resumed run keep their meaning; those of a new run are scaled with Horovod.
    Raises UserError where the flag contradicts how the run was begun, and where that is unknown
    although the run had another number of ranks.
    """
    requested, recorded = optimization.scale_steps_by_ranks, None
    if context.record is not None:
        recorded = context.record.fact("steps", "scaled_by_ranks", bool)
        if not recorded and context.record.fact("ranks", "world_size", int) == 1:
            recorded = None  # on one rank both come to the same
    elif requested is None and _had_other_batches(context, optimization):
        raise UserError(
            f"{context.start.checkpoint} comes from updates of another global batch, and there is "
            "no run.json beside it that says whether the steps are scaled by ranks; give "
            "--scale_steps_by_ranks=true or --scale_steps_by_ranks=false."
        )
    if requested is not None and recorded not in (None, requested):
        meaning = "are scaled by ranks" if recorded else "count the updates of all ranks"
        raise UserError(
            f"--scale_steps_by_ranks={str(requested).lower()}, but the steps of the run to resume "
            f"{meaning} ({context.record.path}), so it would end at another step; leave the flag "
            "out."
        )
    choices = (requested, recorded, context.runtime.horovod)
    scaled = next(choice for choice in choices if choice is not None)
    return dataclasses.replace(optimization, scale_steps_by_ranks=scaled)


def _had_other_batches(context: RunContext, optimization: OptimizationSettings) -> bool:
    if not context.settings.do_train or optimization.num_train_steps is None:
        return False  # nothing is to end, or epochs tell where
    batch = resolve_batch_plan(
        micro_batch_size=optimization.micro_batch_size,
        micro_batch_flag=optimization.micro_batch_flag,
        accumulation_steps=optimization.accumulation_steps,
        global_batch_size=optimization.global_batch_size,
        world_size=context.ranks.world_size,
    )
    now = context.start.data_position * batch.global_batch_size
    return context.start.consumed_sequences not in (None, now)


def check_start(context: RunContext, model: Model, optimization: OptimizationSettings) -> None:
    """Compares network, vocabulary and variables with those that the run starts from.

    Rank 0 alone looks; it says what was taken from --init_checkpoint, and what could not be
    compared. Raises UserError for a checkpoint that cannot be used, and where there is nothing to
    evaluate.
    """
    if not context.ranks.is_chief:
        return
    for prefix, checkpoint in model.frozen.items():
        loading.check_initial(checkpoint, _shapes_of_frozen(model.task, prefix))
    if context.start.checkpoint is not None:
        _check_resumed(context, model, optimization)
    elif context.settings.init_checkpoint:
        _check_initial(context, model)
    elif not context.settings.do_train:
        raise UserError(
            f"{context.settings.output_dir} holds no checkpoint; train first, or give "
            "--init_checkpoint."
        )


def _shapes_of_frozen(task: Task, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a network that is not trained, as its own checkpoint has them."""
    start = f"{prefix}/"
    found = (spec for spec in task.specs() if spec.name.startswith(start) and not spec.trainable)
    return {spec.name[len(start) :]: spec.shape for spec in found}


def _check_resumed(context: RunContext, model: Model, optimization: OptimizationSettings) -> None:
    checkpoint = context.start.checkpoint
    # By the checkpoint's path: other weights in the directory do not count.
    files = model_files(checkpoint)
    problem = ""
    for path, config in known_configs(files):
        named = ", ".join(config.differences(model.config).function.values())
        problem = problem or (f"{path} describes another network: {named}" if named else "")
    notes: list[str] = []
    if not problem:
        problem, notes = other_vocabulary(files, model.vocabulary)
    if problem:
        raise UserError(
            f"cannot resume from {checkpoint}: {problem}; give what the model was trained with, or "
            "choose another --output_dir."
        )
    if context.record is None and context.settings.do_train:
        notes.append("no run.json of the last start: nothing says what has changed since then")
    with tf.Graph().as_default():
        network = create_network(model.task, ForwardOptions())
        tf.train.get_or_create_global_step()
        if context.settings.do_train:
            create_run_state(
                network,
                optimization,
                context.runtime,
                needs_loss_scale=context.needs_loss_scale,
            )
        wanted = [v for v in tf.global_variables() if v.op.name not in COUNTS]
        loading.check_compatible(checkpoint, wanted)
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
    )
    missing = loading.missing_heads(report, heads, context.settings.allowed_fresh)
    if missing and not context.settings.do_train:
        names = " and no ".join(head.name for head in missing)
        raise UserError(
            f"{report.checkpoint} has no {names}, so there is nothing to evaluate yet; train with "
            "--do_train first."
        )
    problem, notes = other_vocabulary(source.files, model.vocabulary)
    if problem:
        raise UserError(
            f"cannot start from {source.path}: {problem}; give the vocabulary of the checkpoint, "
            "and data made with it, or another checkpoint."
        )
    for line in [*report.summary(), *notes]:
        context.message(line)
