"""Settings that are stored with a model, for runs that resume it or use it as it is.

One model has one answer: a command that does not say otherwise reads texts and chooses answers as
the run did that trained the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from bert_tf.config.declared import Settings, settings_of_model, with_settings_of_model
from bert_tf.train.run import Run
from bert_tf.util.errors import UserError
from bert_tf.util.options import shown

Kind = TypeVar("Kind", bound=Settings)


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
