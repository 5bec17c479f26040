"""Opens a run's teacher, and chooses the weights that the student starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from bert_tf.checkpoint.arrays import Shape
from bert_tf.checkpoint.formats import Source, open_source
from bert_tf.checkpoint.loading import compare_shapes, missing_heads, variables_of_another_head
from bert_tf.checkpoint.names import is_run_state
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.complete import other_function, other_vocabulary
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.distillation.task import (
    ATTENTION,
    HIDDEN,
    SOFT_TARGETS,
    TEACHER,
    DistillationTask,
)
from bert_tf.text.tokenizer_files import Vocabulary
from bert_tf.train.job import InitialWeights, RunModel
from bert_tf.train.run import Run
from bert_tf.util.digest import digest_of_blocks
from bert_tf.util.errors import UserError

# Sizes that must agree for a student to start from copied layers.
_COPIED_SIZES = (
    *("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "hidden_act"),
)

# Settings that are paths, or that only decide where a run starts.
_NOT_IN_LEDGER = ("teacher_checkpoint", "teacher_config_file", "teacher_cache", "student_layers")


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher, as every rank knows it.

    Attributes:
      path: its checkpoint, as the user gave it.
      files: those stored with its weights.
      shapes: of its variables.
      weights_digest: a hash of its weights that does not depend on their format.
    """

    path: str
    config: BertConfig
    files: ModelDirectory
    shapes: Mapping[str, Shape]
    weights_digest: str


def open_teacher(settings: DistillationSettings, run: Run) -> Teacher:
    """Opens the teacher on rank 0, the only rank that needs access to its files. Collective.

    Raises UserError if the checkpoint cannot be read or has no configuration.
    """
    return run.ranks.broadcast(_open_teacher(settings) if run.ranks.is_chief else None)


def _open_teacher(settings: DistillationSettings) -> Teacher:
    path = settings.teacher_checkpoint
    require_checkpoint(path, flag="teacher_checkpoint")
    source = open_source(path)
    given = settings.teacher_config_file
    config = source.files.with_config_file(given, flag="teacher_config_file").config
    if given and config is not None:
        problem, _ = other_function(source.files, config)
        if problem:
            raise UserError(
                f"--teacher_checkpoint={path}: {problem}; give the configuration that the teacher "
                "was trained with."
            )
    if config is None:
        raise UserError(
            f"--teacher_checkpoint={path} comes without a configuration; give "
            "--teacher_config_file."
        )
    return Teacher(
        path,
        config=config.with_explicit_gelu(),
        files=source.files,
        shapes=source.shapes,
        weights_digest=_digest(source),
    )


def _digest(source: Source) -> str:
    # Checkpoints of this program also have optimizer moments, under the same scopes.
    scopes = ("bert/", "cls/", "output_")
    names = (n for n in sorted(source.shapes) if n.startswith(scopes) and not is_run_state(n))
    return digest_of_blocks(name.encode() + source.read(name).tobytes() for name in names)


def check_vocabulary(teacher: Teacher, used: Vocabulary | None) -> None:
    """Raises UserError if the teacher is known to have a different vocabulary than the data."""
    problem, _ = other_vocabulary(teacher.files, used)
    if problem:
        raise UserError(
            f"--teacher_checkpoint={teacher.path}: {problem}; teacher and student must have the "
            "same vocabulary."
        )


def student_config(settings: DistillationSettings, teacher: BertConfig) -> BertConfig:
    """The teacher's architecture with the chosen number of layers, by default half as many."""
    chosen = settings.student_layers
    layers = len(chosen) if chosen else max(1, teacher.num_hidden_layers // 2)
    return dataclasses.replace(teacher, num_hidden_layers=layers)


def with_teacher(model: RunModel, teacher: Teacher, task: DistillationTask, run: Run) -> RunModel:
    """Adds the teacher to a run's model, and chooses the student's initial weights. Collective.

    Raises UserError if the teacher has another vocabulary, lacks the head that soft targets need,
    has sizes that the losses cannot compare, or lacks one of the chosen layers.
    """
    settings = task.settings
    _check_sizes(task, run)
    if run.ranks.is_chief:
        _check_files(model, teacher, task)
    options = dataclasses.asdict(settings)
    section = {
        "teacher": teacher.path,
        "teacher_sha256": teacher.weights_digest,
        "teacher_layers": teacher.config.num_hidden_layers,
        "teacher_hidden_size": teacher.config.hidden_size,
        **{name: options[name] for name in options if name not in _NOT_IN_LEDGER},
    }
    return dataclasses.replace(
        model,
        task=task,
        evaluated=model.task,
        initial=_initial_weights(run, settings, teacher.config, model),
        frozen={} if settings.teacher_cache else {TEACHER: teacher.path},
        ledger={"distillation": section, **model.ledger},
    )


def _check_sizes(task: DistillationTask, run: Run) -> None:
    student, teacher = task.student, task.teacher
    compared = task.factors
    if not compared:
        raise UserError(
            "no teacher loss is enabled: all of --alpha_ce, --alpha_cos, --alpha_hidden and "
            "--alpha_attention are 0; raise one, or train without --teacher_checkpoint."
        )
    if SOFT_TARGETS in compared and student.num_classes != teacher.num_classes:
        raise UserError(
            f"the student scores {student.num_classes} classes and the teacher "
            f"{teacher.num_classes}; give a teacher with the same vocabulary or classes, or "
            "--alpha_ce=0."
        )
    if task.config.num_hidden_layers > teacher.config.num_hidden_layers and (
        HIDDEN in compared or ATTENTION in compared
    ):
        raise UserError(
            f"the student has {task.config.num_hidden_layers} layers and the teacher "
            f"{teacher.config.num_hidden_layers}, but --alpha_hidden and --alpha_attention match "
            "each of the student's layers with a different one of the teacher's; give fewer layers."
        )
    if ATTENTION in compared:
        heads, of_teacher = task.config.num_attention_heads, teacher.config.num_attention_heads
        if heads != of_teacher:
            raise UserError(
                f"--alpha_attention compares heads, but the student has {heads} and the teacher "
                f"{of_teacher}; give --num_attention_heads={of_teacher} or --alpha_attention=0."
            )
        if run.runtime.recompute:
            raise UserError(
                "--alpha_attention needs the attention scores, which --recompute discards; drop "
                "one of them."
            )


def _check_files(model: RunModel, teacher: Teacher, task: DistillationTask) -> None:
    """Compares vocabularies, and checks that the teacher has the heads that are needed."""
    check_vocabulary(teacher, model.vocabulary)
    if SOFT_TARGETS not in task.factors:
        return
    heads = task.teacher.heads
    of_others = variables_of_another_head(teacher.files.classes, heads)
    stored = {name: shape for name, shape in teacher.shapes.items() if name not in of_others}
    network = {spec.name: spec.shape for spec in task.teacher.specs()}
    report = compare_shapes(teacher.path, stored, network)
    for head in missing_heads(report, heads):
        raise UserError(
            f"--teacher_checkpoint={teacher.path} has no {head.name}, so it gives no soft targets; "
            f"train it with {head.trained_by} first, or give --alpha_ce=0."
        )


def _initial_weights(
    run: Run, settings: DistillationSettings, teacher: BertConfig, model: RunModel
) -> InitialWeights:
    """The student's initial weights: those the user gave, or layers of the teacher."""
    chosen, given, student = settings.student_layers, model.initial, model.config
    if run.start.checkpoint is not None:
        return given
    if given.checkpoint:
        if chosen is not None:
            raise UserError(
                "--student_layers chooses layers of the teacher, or random weights, but "
                f"--init_checkpoint={given.checkpoint} gives the weights to start from; drop "
                "one of them."
            )
        return given
    if chosen == ():
        run.message("the student starts from random weights (--student_layers=none)")
        return given
    if chosen:
        _check_layers(chosen, teacher, student)
    different = _differences(teacher, student)
    if different:
        if chosen:
            raise UserError(
                f"--student_layers cannot be copied, since {different}; drop the flag to start "
                "from random weights."
            )
        run.message(f"the student starts from random weights, since {different}")
        return given
    if student.num_hidden_layers > teacher.num_hidden_layers:
        run.message("the student starts from random weights: it has more layers")
        return given
    layers = list(chosen or initial_layers(student, teacher))
    run.message(
        f"the student starts from layers {', '.join(map(str, layers))} of its teacher's "
        f"{teacher.num_hidden_layers}"
    )
    if teacher.type_vocab_size and not student.type_vocab_size:
        run.message("the student has no segment embeddings, so its teacher's are left out")
    return InitialWeights(settings.teacher_checkpoint, layers)


def initial_layers(student: BertConfig, teacher: BertConfig) -> list[int]:
    """For each student layer, the teacher's layer to start from: every second for half as many."""
    layers, of_teacher = student.num_hidden_layers, teacher.num_hidden_layers
    return [layer * of_teacher // layers for layer in range(layers)]


def _check_layers(layers: Sequence[int], teacher: BertConfig, student: BertConfig) -> None:
    given = f"--student_layers={','.join(map(str, layers))}"
    beyond = [layer for layer in layers if not 0 <= layer < teacher.num_hidden_layers]
    if beyond:
        raise UserError(
            f"{given}: the teacher has {teacher.num_hidden_layers} layers, counted from 0, and no "
            f"layer {beyond[0]}."
        )
    if len(layers) != student.num_hidden_layers:
        raise UserError(
            f"{given} names {len(layers)} layers, but the student has {student.num_hidden_layers}."
        )


def _differences(teacher: BertConfig, student: BertConfig) -> str:
    """The reason why weights cannot be copied; empty if they can."""
    before, now = (config.with_explicit_gelu() for config in (teacher, student))
    return ", ".join(
        f"its {name} is {getattr(now, name)} and its teacher's {getattr(before, name)}"
        for name in _COPIED_SIZES
        if getattr(before, name) != getattr(now, name)
    )
