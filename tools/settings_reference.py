"""The reference of settings for programs, as a Markdown page generated from their declarations.

python -m tools.settings_reference docs/reference/generated/settings.md
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_tf.config.declared import Settings, groups_of, options_of
from bert_tf.util.options import Option, shown
from tools.flag_reference import ROOT, as_markdown, output_argument, write_if_changed

# Where tasks and exports declare settings; none of these imports TensorFlow.
_MODULES_OF_TASKS = (
    *("settings.py", "replaced_tokens/objective.py", "tagging/flags.py"),
    "multiple_choice/flags.py",
    *("classification/flags.py", "classification/own_files.py", "classification/texts.py"),
)


def settings_classes() -> list[type[Settings]]:
    """All settings classes of the toolkit: first those of every run, then those of tasks."""
    tasks = ROOT / "bert_tf/tasks"
    files = [
        *sorted((ROOT / "bert_tf/config").glob("*.py")),
        ROOT / "bert_tf/finetune/settings.py",
        ROOT / "bert_tf/inference/settings.py",
        *sorted(path for name in _MODULES_OF_TASKS for path in tasks.rglob(name)),
        ROOT / "bert_tf/serving/settings.py",
    ]
    found = []
    for path in files:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        members = vars(importlib.import_module(name)).values()
        found += [kind for kind in members if _is_declared(kind) and kind.__module__ == name]
    return found


def _is_declared(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings) and kind is not Settings


def page() -> str:
    """The page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from ("# Settings", "", _INTRODUCTION)
    for kind in settings_classes():
        about = (kind.__doc__ or "").partition("\n")[0]
        yield from ("", f"## {kind.__name__}", "", f"`{kind.__module__}`", "", as_markdown(about))
        yield from ("", "| field | default | flag | meaning |", "|---|---|---|---|")
        options, groups = options_of(kind), groups_of(kind)
        for field in dataclasses.fields(kind):
            option, group = options.get(field.name), groups.get(field.name)
            if option is not None:
                yield _row(field, option)
            elif group is not None:
                anchor = group.__name__.lower()
                yield f"| `{field.name}` | | | [{group.__name__}](#{anchor}) |"
            else:
                yield f"| `{field.name}` | {_default(field)} | | `{_cell(str(field.type))}` |"


_INTRODUCTION = """\
What a program passes to the toolkit instead of flags: frozen dataclasses, whose constructors raise
`UserError` for a value out of bounds and for values that contradict each other.
[Write your own task](../../howto/your_own_task.md) shows how to use them."""


def _row(field: dataclasses.Field, option: Option) -> str:
    limits = f" Must {option.bounds}." if option.bounds else ""
    meaning = _cell(as_markdown(" ".join(option.help_text.split()) + limits))
    return f"| `{field.name}` | {_default(field)} | `--{option.flag}` | {meaning} |"


def _default(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{_cell(shown(field.default))}`"
    return "" if field.default_factory is not dataclasses.MISSING else "required"


def _cell(text: str) -> str:
    """Escapes text for a cell of a table."""
    return text if "\\|" in text else text.replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the page to the given path."""
    write_page(output_argument(__doc__, arguments))


def write_page(path: Path) -> None:
    """Writes the page unless it is unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_if_changed(path, page())


if __name__ == "__main__":
    main()
