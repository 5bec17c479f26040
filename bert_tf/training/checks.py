"""What a run starts from against what it is to train: compared before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint import loading
from bert_tf.checkpoint.model_files import model_files, write_model_files
from bert_tf.checkpoint.same_model import known_configs, other_vocabulary
from bert_tf.config.bert_config import BertConfig
from bert_tf.config.settings import OptimizationSettings
from bert_tf.errors import UserError
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Task, create_network
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary
from bert_tf.training.context import Run
from bert_tf.training.start_point import COUNTS
from bert_tf.training.trainer import create_run_state
from bert_tf.tuning.hardware import needs_loss_scale
from bert_tf.update.batch_plan import resolve_batch_plan


@dataclasses.dataclass(frozen=True)
class Model:
    """What a run trains or measures, and how its output directory describes it.

    Attributes:
      task: with the architecture.
      vocabulary: of the data; None where nobody knows it.
      tokenizer_files: where it is and whether text is lower-cased, for a directory that is to
        hold both.
      frozen: prefix of a network that is not trained -> the checkpoint with its weights.
    """

    task: Task
    vocabulary: Vocabulary | None
    tokenizer_files: TokenizerFiles = dataclasses.field(default_factory=TokenizerFiles)
    frozen: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def config(self) -> BertConfig:
        """The architecture."""
        return self.task.config

    def write_files(self, directory: Path) -> None:
        """Makes ``directory`` a model directory of this network."""
        write_model_files(directory, self.config, self.tokenizer_files)


def settle_scaling(run: Run, optimization: OptimizationSettings) -> OptimizationSettings:
    """The settings with ``scale_steps_by_ranks`` decided.

    Steps of a run that is resumed go on to mean what they meant; those of a new run are scaled with
    Horovod. Raises UserError where the flag says otherwise than the run was begun, and where nobody
    says how it was begun although its ranks were others.
    """
    asked, recorded = optimization.scale_steps_by_ranks, None
    if run.record is not None:
        recorded = run.record.fact("steps", "scaled_by_ranks", bool)
        if not recorded and run.record.fact("ranks", "world_size", int) == 1:
            recorded = None  # on one rank both come to the same
    elif asked is None and _had_other_batches(run, optimization):
        raise UserError(
            f"{run.start.checkpoint} comes from updates of another global batch, and no run.json "
            "beside it says whether the steps are scaled by ranks; give "
            "--scale_steps_by_ranks=true or --scale_steps_by_ranks=false."
        )
    if asked is not None and recorded not in (None, asked):
        meaning = "are scaled by ranks" if recorded else "count the updates of all ranks"
        raise UserError(
            f"--scale_steps_by_ranks={str(asked).lower()}, but the steps of the run to resume "
            f"{meaning} ({run.record.path}), so that it would end elsewhere; leave the flag out."
        )
    choices = (asked, recorded, run.runtime.horovod)
    scaled = next(choice for choice in choices if choice is not None)
    return dataclasses.replace(optimization, scale_steps_by_ranks=scaled)


def _had_other_batches(run: Run, optimization: OptimizationSettings) -> bool:
    if not run.settings.do_train or optimization.num_train_steps is None:
        return False  # nothing is to end, or epochs tell where
    batch = resolve_batch_plan(
        micro_batch_size=optimization.micro_batch_size,
        micro_batch_flag=optimization.micro_batch_flag,
        accumulation_steps=optimization.accumulation_steps,
        global_batch_size=optimization.global_batch_size,
        world_size=run.ranks.world_size,
    )
    now = run.start.data_position * batch.global_batch_size
    return run.start.consumed_sequences not in (None, now)


def check_start(run: Run, model: Model, optimization: OptimizationSettings) -> None:
    """Compares network, vocabulary and variables with those that the run starts from.

    Rank 0 alone looks; it says what was taken from --init_checkpoint, and what could not be
    compared. Raises UserError for a checkpoint that cannot be used, and where there is nothing to
    evaluate.
    """
    if not run.ranks.is_chief:
        return
    for prefix, checkpoint in model.frozen.items():
        loading.check_initial(checkpoint, _shapes_of_frozen(model.task, prefix))
    if run.start.checkpoint is not None:
        _check_resumed(run, model, optimization)
    elif run.settings.init_checkpoint:
        _check_initial(run, model)
    elif not run.settings.do_train:
        raise UserError(
            f"{run.settings.output_dir} holds no checkpoint; train first, or give "
            "--init_checkpoint."
        )


def _shapes_of_frozen(task: Task, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a network that is not trained, as its own checkpoint has them."""
    start = f"{prefix}/"
    found = (spec for spec in task.specs() if spec.name.startswith(start) and not spec.trainable)
    return {spec.name[len(start) :]: spec.shape for spec in found}


def _check_resumed(run: Run, model: Model, optimization: OptimizationSettings) -> None:
    checkpoint = run.start.checkpoint
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
    if run.record is None and run.settings.do_train:
        notes.append("no run.json of the last start: nothing says what has changed since then")
    with tf.Graph().as_default():
        network = create_network(model.task, ForwardOptions())
        tf.train.get_or_create_global_step()
        if run.settings.do_train:
            create_run_state(
                network,
                optimization,
                run.runtime,
                needs_loss_scale=needs_loss_scale(run.runtime, run.policy, run.hardware),
            )
        wanted = [v for v in tf.global_variables() if v.op.name not in COUNTS]
        loading.check_compatible(checkpoint, wanted)
    for note in notes:
        run.message(note)


def _check_initial(run: Run, model: Model) -> None:
    heads = model.task.heads
    source, report = loading.check_initial(
        run.settings.init_checkpoint,
        {spec.name: spec.shape for spec in model.task.specs() if spec.trainable},
        allowed_fresh=run.settings.allowed_fresh,
        heads=heads,
        config=model.config,
    )
    missing = loading.missing_heads(report, heads, run.settings.allowed_fresh)
    if missing and not run.settings.do_train:
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
        run.message(line)
