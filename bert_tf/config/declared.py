"""Settings that are declared once: a field holds default, bounds, flag and help text.

    @dataclasses.dataclass(frozen=True)
    class LogSettings(Settings):
        \"\"\"What a run logs.\"\"\"

        display_loss_steps: int = setting(10, "Steps between lines.", bounds=AT_LEAST_ONE)

Such settings, whether made from flags or in a program, have been checked.
``bert_tf.cli.settings_flags`` defines a class's flags and reads them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bert_tf.util.errors import UserError
from bert_tf.util.files import require_file
from bert_tf.util.options import Interval, Option, shown

AT_LEAST_ONE = Interval(1)
NOT_NEGATIVE = Interval(0)

_OPTION = "option"

Group = TypeVar("Group", bound="Settings")
Found = TypeVar("Found")


def setting(default: Any, help_text: str, **facts: Any) -> Any:
    """A field with a flag, for the facts of an :class:`Option`; the flag has the field's name.

    The default ``...`` makes a field that must be given.
    """
    # Values that only parsing creates, such as a file's content, are not defaults of flags.
    flag_default = default if isinstance(default, (bool, int, float, str)) else None
    if "parse" in facts and facts.get("kind") is bool:
        flag_default = False
    option = Option(flag_default, help_text=help_text, **facts)
    if default is ...:
        return dataclasses.field(metadata={_OPTION: option})
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata={_OPTION: option})
    return dataclasses.field(default=default, metadata={_OPTION: option})


def path_setting(
    help_text: str, *, flag: str = "", flag_of_file: str = "", or_directory: bool = False
) -> Any:
    """A field for an optional path, which may differ between hosts.

    If ``flag_of_file`` is given, a value of that flag that is not a file raises UserError, unless
    it is a directory and may be one.
    """

    def parse(given: str) -> Path | None:
        if not given:
            return None
        if not flag_of_file or (or_directory and Path(given).is_dir()):
            return Path(given)
        return require_file(given, flag=flag_of_file)

    name = flag or flag_of_file
    return setting(None, help_text, flag=name, kind=Path, parse=parse, per_host=True)


def group(kind: type[Group]) -> Any:
    """A field for a group of settings, by default ``kind`` with its own defaults."""
    return dataclasses.field(default_factory=kind)


@dataclasses.dataclass(frozen=True)
class Settings:
    """A frozen dataclass of settings, checked as a whole when it is created."""

    def __post_init__(self) -> None:
        """Raises UserError for a value out of bounds and for contradictory values."""
        for name, option in options_of(type(self)).items():
            problem = option.problem(getattr(self, name))
            if problem is not None:
                raise UserError(problem)
        for contradiction in self.contradictions():
            raise UserError(contradiction)

    def contradictions(self) -> Iterator[str]:
        """Yields a sentence for each contradiction between individually valid values."""
        return iter(())

    def given(self, name: str) -> str:
        """A setting as a user would write it, such as ``--seed=1``."""
        return f"--{options_of(type(self))[name].flag}={shown(getattr(self, name))}"


def _once(found_in: Callable[[type], Found]) -> Callable[[type], Found]:
    """What a function finds in a class, which is looked for once."""
    return functools.cache(found_in)


@_once
def options_of(kind: type) -> dict[str, Option]:
    """Field -> option, for a class's fields that have a flag."""
    return {
        field.name: dataclasses.replace(option, flag=option.flag or field.name)
        for field in dataclasses.fields(kind)
        if (option := field.metadata.get(_OPTION)) is not None
    }


@_once
def groups_of(kind: type) -> dict[str, type[Settings]]:
    """Field -> class, for a class's fields that are groups of settings."""
    factories: dict[str, Any] = {f.name: f.default_factory for f in dataclasses.fields(kind)}
    return {
        name: factory
        for name, factory in factories.items()
        if isinstance(factory, type) and issubclass(factory, Settings)
    }


def settings_of_model(settings: Settings) -> dict[str, Any]:
    """Flag -> value, of all settings that are stored with a model, those of groups included."""
    found = {
        option.flag: getattr(settings, name)
        for name, option in options_of(type(settings)).items()
        if option.of_model
    }
    for name in groups_of(type(settings)):
        found.update(settings_of_model(getattr(settings, name)))
    return found


def with_settings_of_model(settings: Group, stored: Mapping[str, Any]) -> Group:
    """The settings with those values of :func:`settings_of_model` that ``stored`` has.

    Raises UserError for a value of another type or out of bounds, and for contradictory values.
    """
    changes: dict[str, Any] = {
        name: with_settings_of_model(getattr(settings, name), stored)
        for name in groups_of(type(settings))
    }
    for name, option in options_of(type(settings)).items():
        if option.of_model and option.flag in stored:
            changes[name] = option.checked(stored[option.flag])
    return dataclasses.replace(settings, **changes)
