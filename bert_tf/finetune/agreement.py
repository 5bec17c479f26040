"""What a run has in common with the weights that it starts from, and with its teacher.

One model has one answer: a command that does not say otherwise reads texts and chooses answers as
the run did that trained the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from bert_tf.config.declared import Settings, settings_of_model, with_settings_of_model
from bert_tf.finetune.settings import FinetuningSettings
from bert_tf.model_directory.classes import Classes
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.train.run import Run
from bert_tf.util.errors import UserError
from bert_tf.util.options import shown

Kind = TypeVar("Kind", bound=Settings)


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


def first_weights(run: Run) -> str | None:
    """The weights that a run starts from, resumed or given; None for random ones."""
    return run.start.checkpoint or run.settings.start.init_checkpoint or None


def stored_classes(settings: FinetuningSettings, run: Run, *, of_words: bool) -> StoredClasses:
    """Reads the classes of words or of texts, on rank 0 only. Collective.

    Raises UserError for malformed files, and for a teacher that does not exist.
    """
    found = None
    if run.ranks.is_chief:
        weights, teacher = first_weights(run), settings.distillation
        model = ModelDirectory.of(weights) if weights else ModelDirectory()
        taught = None
        if teacher is not None and settings.run.do_train:
            require_checkpoint(teacher.teacher_checkpoint, flag="teacher_checkpoint")
            taught = _classes_of(ModelDirectory.of(teacher.teacher_checkpoint), of_words)
        resumed = model.record if run.start.checkpoint else None
        chosen_on = resumed.chosen_on if resumed else None
        found = StoredClasses(_classes_of(model, of_words), taught, chosen_on)
    return run.ranks.broadcast(found)


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


def _classes_of(model: ModelDirectory, of_words: bool) -> Classes | None:
    return model.classes if model.classes and model.classes.of_words == of_words else None


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
    source, record = run.start.checkpoint, run.record
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


def as_stored(
    settings: Kind,
    run: Run,
    *,
    without: type[Settings] | None = None,
    stores: Collection[str] = (),
) -> Kind:
    """The settings with those that are stored with the run's model where the user gave none.

    Says which these are, and which of the user's differ from them. ``without`` is a group of
    settings that do not come from a model; those that the run ``stores`` in place of the model's
    may differ. Raises UserError for a stored value that is not valid, or contradicts what the user
    gave.
    """
    asked, defaulted = settings_of_model(settings), run.settings.command.defaulted
    if without is not None:
        asked = {n: value for n, value in asked.items() if n not in settings_of_model(without())}
    differing = {n: v for n, v in run.kept.items() if n in asked and asked[n] != v}
    taken = {name: value for name, value in differing.items() if name in defaulted}
    try:
        found = with_settings_of_model(settings, taken)
    except UserError as error:
        raise UserError(
            f"the model was trained with {_listed(taken)}, but this command contradicts it: {error}"
        ) from error
    if taken:
        run.message(f"as in the training of the model: {_listed(taken)}")
        run.decided.update(taken)
    if not run.settings.do_train:
        for name in sorted(differing.keys() - taken.keys() - {*stores}):
            run.warn(
                f"--{name}={shown(asked[name])}, but the model was trained with "
                f"{shown(differing[name])}; other commands and load_model predict with that",
                part="settings",
            )
    return found


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"--{name}={shown(value)}" for name, value in sorted(values.items()))
