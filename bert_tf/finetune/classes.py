"""What tasks with classes share: files of a directory, and agreement on classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from bert_tf.finetune.run import first_weights
from bert_tf.finetune.settings import EVAL, PREDICT, TRAIN, DirectorySettings, FinetuningSettings
from bert_tf.model_directory.classes import Classes
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.train.run import Run
from bert_tf.util.errors import UserError

Examples = TypeVar("Examples")

# Kind of a file -> the name of its split in a directory of data.
_SPLITS = {TRAIN: "train", EVAL: "dev", PREDICT: "test"}


def read_files(
    settings: DirectorySettings,
    *,
    find: Callable[..., Any],
    read: Callable[..., Examples],
) -> dict[str, Examples]:
    """Reads the files that a run uses.

    Args:
      settings: the settings of the run.
      find: finds a split in a directory; called with directory, split and ``flag``.
      read: reads a file, or what ``find`` has found; called with its path, ``flag`` and
        ``needs_labels``.

    Returns the contents by kind.
    """
    files = {}
    for kind, given in settings.files.items():
        flag, path = f"{kind}_file", given
        if given is None:
            flag, path = "data_dir", find(settings.data_dir, _SPLITS[kind], flag="data_dir")
        files[kind] = read(path, flag=flag, needs_labels=kind != PREDICT)
    return files


def log_frequencies(counts: Sequence[float]) -> tuple[float, ...]:
    """The logarithms of the frequencies of classes, with one more of each, so that all are finite.

    A head whose bias starts from these learns from texts in its first updates, instead of the
    frequencies (Lin et al. 2017, "Focal Loss for Dense Object Detection", section 3.3).
    """
    more = [count + 1 for count in counts]
    total = sum(more)
    return tuple(math.log(count / total) for count in more)


class StoredClasses(NamedTuple):
    """The classes that are stored with networks; None for one without such a head.

    Attributes:
      own: of the weights that the run starts from, resumed or given.
      taught: of the teacher of a run that trains.
      chosen_on: the records on which the thresholds of a resumed model were chosen.
    """

    own: Classes | None
    taught: Classes | None
    chosen_on: str | None


def stored_classes(
    settings: FinetuningSettings, run: Run, *, kinds: tuple[str, ...]
) -> StoredClasses:
    """Reads the classes that are of one of these kinds, on rank 0 only. Collective.

    Raises UserError for malformed files, and for a teacher that does not exist.
    """
    stored = None
    if run.ranks.is_chief:
        weights, teacher = first_weights(run), settings.distillation
        model = ModelDirectory.of(weights) if weights else ModelDirectory()
        taught = None
        if teacher is not None and settings.run.do_train:
            require_checkpoint(teacher.teacher_checkpoint, flag="teacher_checkpoint")
            taught = ModelDirectory.of(teacher.teacher_checkpoint).classes_of(kinds)
        resumed = model.record if run.start.checkpoint else None
        chosen_on = resumed.chosen_on if resumed else None
        stored = StoredClasses(model.classes_of(kinds), taught, chosen_on)
    return run.ranks.broadcast(stored)


def check_taught(
    settings: FinetuningSettings, taught: Classes | None, labels: tuple[str, ...], *, what: str
) -> None:
    """Raises UserError if soft targets would compare different classes, called ``what``."""
    teacher = settings.distillation
    if taught is None or teacher is None or not teacher.alpha_ce or taught.labels == labels:
        return
    raise UserError(
        f"--teacher_checkpoint={teacher.teacher_checkpoint} has the {what} {taught.described()}, "
        f"and the student {', '.join(labels)}; give a teacher with the same ones in the same "
        "order, or --alpha_ce=0."
    )


def check_trained_on(
    run: Run,
    name: str,
    *,
    same_head: Collection[str] = (),
    advice: Mapping[str, str] | None = None,
) -> None:
    """Raises UserError if a run would use the head of another task, whose shape may be the same.

    Training may start from the weights of any task.

    Args:
      run: the run.
      name: this task's name in ledgers.
      same_head: the names of tasks whose head may predict this one.
      advice: further advice for the message, by the name of the other task.
    """
    source, record = run.start.checkpoint, run.start.record
    if source is None and run.settings.start.init_checkpoint and not run.settings.do_train:
        source = run.settings.start.init_checkpoint
        record = ModelDirectory.of(source).run_record
    trained_on = record.ledger.get("data", {}).get("task") if record else None
    allowed = {name} if run.settings.do_train else {name, *same_head}
    if trained_on is not None and trained_on not in allowed:
        first = (advice or {}).get(trained_on, "")
        raise UserError(
            f"{source} was trained on {trained_on}, not on {name}; {first}choose another "
            "checkpoint or --output_dir."
        )
