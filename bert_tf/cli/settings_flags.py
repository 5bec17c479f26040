"""Defines flags from declared settings, and makes settings from parsed flags.

:meth:`Definer.settings` defines the flags of a class and :func:`from_flags` reads them; each flag
knows its setting.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, Union

from absl import flags

from bert_tf.cli.flags import Number, project_flags
from bert_tf.config.declared import Settings, groups_of, options_of
from bert_tf.config.settings import CommandLine
from bert_tf.util.errors import UserError
from bert_tf.util.files import require_file
from bert_tf.util.options import Option

AUTO = "auto"

AnySettings = TypeVar("AnySettings", bound=Settings)


class Definer:
    """Defines flags in a given set: the program's or a test's."""

    def __init__(self, values: flags.FlagValues) -> None:
        self.string = functools.partial(flags.DEFINE_string, flag_values=values)
        self.integer = functools.partial(flags.DEFINE_integer, flag_values=values)
        self.number = functools.partial(flags.DEFINE, Number(), flag_values=values)
        self.boolean = functools.partial(flags.DEFINE_bool, flag_values=values)
        self.enum = functools.partial(flags.DEFINE_enum, flag_values=values)
        self.values = values

    def settings(
        self, kind: type[Settings], *, without: Iterable[str] = (), **changes: Mapping[str, Any]
    ) -> None:
        """Defines the flags of a settings class, but not of its groups or base classes.

        The command has none for the fields in ``without``; ``changes`` are field -> facts of its
        :class:`Option` that are different in this command.
        """
        for name, option in options_of(kind).items():
            if name in vars(kind).get("__annotations__", {}) and name not in without:
                declared = option.flag
                option = dataclasses.replace(option, **changes.get(name, {}))
                self.option(option)
                flag: Any = self.values[option.flag]  # takes attributes that absl does not know
                flag.setting, flag.per_host = (kind, name), option.per_host
                if option.flag != declared:
                    flag.stands_for = f"--{declared}"

    def option(self, option: Option) -> None:
        """Defines the flag of an option."""
        default: Any = option.default  # has the type of the flag
        given = option.flag, default
        if option.takes_auto:
            parser, serializer = _BooleanOrAuto(), flags.ArgumentSerializer[Any]()
            flag = flags.Flag(parser, serializer, *given, option.help_text, boolean=True)
            flags.DEFINE_flag(flag, self.values)
        elif option.choices:
            self.enum(*given, list(option.choices), option.help_text)
        elif option.takes_infinity:
            flags.DEFINE(Number(infinite=True), *given, option.help_text, flag_values=self.values)
        else:
            self._by_kind(option.value_type)(*given, option.help_text)

    def other_name(self, name: str, flag: str, option: Option) -> None:
        """Defines another name for a flag, or for a flag's value, such as --precision=fp16."""
        self._by_kind(option.value_type)(name, option.default, option.help_text)
        defined: Any = self.values[name]
        defined.stands_for = f"--{flag}"

    def per_host(self, *names: str) -> None:
        """Marks flags that may differ between hosts."""
        for name in names:
            flag: Any = self.values[name]
            flag.per_host = True

    def ignored(self, kinds: Mapping[str, type], why: str) -> None:
        """Defines flags, by name and type, that have no effect."""
        for name, kind in kinds.items():
            self._by_kind(kind)(name, None, f"Ignored: {why}.")

    def _by_kind(self, kind: type) -> Any:
        return {
            bool: self.boolean,
            str: self.string,
            Path: self.string,
            int: self.integer,
            float: self.number,
        }[kind]


class _BooleanOrAuto(flags.ArgumentParser[Union[bool, str]]):
    """Parses an argument to True, False or ``AUTO``."""

    def flag_type(self) -> str:
        """See the base class."""
        return "bool"

    def parse(self, argument: str | int | bool) -> bool | str:
        if argument == AUTO:
            return AUTO
        try:
            return flags.BooleanParser().parse(argument)
        except ValueError as error:
            raise ValueError("must be true, false or auto") from error


def from_flags(kind: type[AnySettings], values: flags.FlagValues, **made: Any) -> AnySettings:
    """Makes the settings of a class and its groups from parsed flags.

    A setting that has no flag among ``values``, or whose flag has no value, gets its default.
    ``made`` has fields of the class or of a group that are not read from their flags. Raises
    UserError for invalid settings.
    """
    flag_of = {getattr(values[name], "setting", None): values[name] for name in values}
    found = {}
    for field in dataclasses.fields(kind):
        name, group = field.name, groups_of(kind).get(field.name)
        flags_of_field = (flag_of.get((base, name)) for base in kind.__mro__)
        flag = next((found for found in flags_of_field if found is not None), None)
        if name in made:
            found[name] = made[name]
        elif group is not None:
            inner = {name: value for name, value in made.items() if _is_below(group, name)}
            found[name] = from_flags(group, values, **inner)
        elif flag is not None and flag.value is not None:
            found[name] = _value_of(flag, options_of(kind)[name])
    return kind(**found)


def _is_below(kind: type[Settings], name: str) -> bool:
    """Whether a class or one of its groups has a field with this name."""
    if any(field.name == name for field in dataclasses.fields(kind)):
        return True
    return any(_is_below(group, name) for group in groups_of(kind).values())


def _value_of(flag: flags.Flag, option: Option) -> Any:
    """The setting that a flag's value means; a UserError names the flag."""
    if option.takes_auto and flag.value == AUTO:
        return None
    value = flag.value if option.parse is None else option.parse(flag.value)
    problem = option.problem(value, flag=flag.name)
    if problem is not None:
        raise UserError(problem)
    return value


def command_line(values: flags.FlagValues) -> CommandLine:
    """All flags of the program, for the record and for comparison between ranks."""
    found = project_flags(values)
    return CommandLine(
        values={flag.name: flag.value for flag in found},
        defaulted=frozenset(flag.name for flag in found if not flag.present),
        per_host=frozenset(flag.name for flag in found if getattr(flag, "per_host", False)),
    )


def require(values: flags.FlagValues, *names: str) -> None:
    """Raises UserError for the first of these flags that was not given."""
    for name in names:
        if not values[name].value:
            raise UserError(f"--{name} is required.")


def optional_file(values: flags.FlagValues, name: str) -> Path | None:
    """The file named by a flag, or None if it was not given.

    Raises UserError if the file does not exist.
    """
    value = values[name].value
    return require_file(value, flag=name) if value else None


def at_least_one(values: flags.FlagValues, name: str) -> None:
    """Raises UserError if a count was given but is not positive."""
    value = values[name].value
    if value is not None and value < 1:
        raise UserError(f"--{name}={value} must be at least 1.")
