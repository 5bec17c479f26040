"""The reference of all commands' flags, as Markdown pages generated from the definitions.

    python -m tools.flag_reference docs/reference/generated/commands

Each command is started with --help in a separate process, and describes its flags instead of
printing them. So a page contains what the command accepts, wherever the flags are defined.
TensorFlow is not imported.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_SHOWS_ITSELF = "from tools.flag_reference import show_as_json; show_as_json()"
_FLAG = re.compile(r"(--\w[\w-]*(?:=[^\s,;()]*[^\s,;():.'\"])?)")
_CHOICES = re.compile(r"^<[^>]+>: ")
# absl marks required flags only by this message.
_REQUIRED = "must have a value other than None"
# Text in the source of a command that other modules next to it do not contain.
_MARKS = {"data_prep": '\nif __name__ == "__main__":', "bert_tf/commands": "run_command"}
# A command with this flag also takes the flags of the training script that it names.
_SCRIPT = "script"


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the toolkit.

    Attributes:
      name: the name of its page.
      target: what Python runs: a file in the root of the repository, or a module.
    """

    name: str
    target: str

    @property
    def typed(self) -> str:
        """What a user types."""
        return f"python {'' if self.target.endswith('.py') else '-m '}{self.target}"


@dataclasses.dataclass(frozen=True)
class Flags:
    """The flags of a command by heading, in the order of its --help."""

    about: str
    groups: dict[str, list[dict[str, Any]]]


def commands() -> list[Command]:
    """All commands: training scripts, stages of data preparation, and the other commands."""
    scripts = [Command(path.stem, path.name) for path in sorted(ROOT.glob("run_*.py"))]
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder, mark in _MARKS.items()
        for path in sorted((ROOT / folder).glob("*.py"))
        if mark in path.read_text(encoding="utf-8")
    ]
    return [*scripts, *(Command(module, module) for module in modules)]


def show_as_json() -> None:
    """Runs the command in ``sys.argv`` with --help, which prints its flags' descriptions."""
    from bert_tf.cli import flags

    def described(values: Any, about: str | None) -> str:
        found = [_described(flag) for flag in flags.project_flags(values)]
        return json.dumps({"about": about or "", "flags": found})

    flags.help_text = described
    _, target = sys.argv
    sys.argv = [target, "--help"]
    if target.endswith(".py"):
        runpy.run_path(target, run_name="__main__")
    else:
        runpy.run_module(target, run_name="__main__", alter_sys=True)


def _described(flag: Any) -> dict[str, Any]:
    return {
        "name": flag.name,
        "heading": getattr(flag, "heading", "Flags"),
        "kind": "bool" if flag.boolean else flag.flag_type(),
        "default": flag.default,
        "limits": _limits(flag),
        "choices": list(getattr(flag.parser, "enum_values", None) or []),
        "help": flag.help,
        "per_host": getattr(flag, "per_host", False),
        "required": any(_REQUIRED in validator.message for validator in flag.validators),
    }


def _limits(flag: Any) -> str:
    """The requirement for a number, such as ``be at least 1``; empty if there is none."""
    from bert_tf.config.declared import options_of
    from bert_tf.util.options import Interval

    kind, name = getattr(flag, "setting", (None, None))
    bounds = options_of(kind)[name].bounds if kind else None
    low, high = (getattr(flag.parser, f"{end}_bound", None) for end in ("lower", "upper"))
    if bounds is None and low is not None:
        bounds = Interval(low, high)
    return "" if bounds is None else str(bounds)


def flags_of(command: Command) -> Flags:
    """The flags of a command, without those of a script that it also takes."""
    done = subprocess.run(
        [sys.executable, "-c", _SHOWS_ITSELF, command.target],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)
    groups: dict[str, list[dict[str, Any]]] = {}
    for flag in found["flags"]:
        groups.setdefault(flag["heading"], []).append(flag)
    for heading, flags in groups.items():
        if any(flag["name"] == _SCRIPT for flag in flags):
            groups = {heading: flags}
            break
    return Flags(found["about"].strip(), groups)


def page(command: Command, flags: Flags) -> str:
    """The Markdown page of a command."""
    return "\n".join(_lines(command, flags)) + "\n"


def _lines(command: Command, flags: Flags) -> Iterator[str]:
    first, _, rest = flags.about.partition("\n")
    title = command.target.rpartition("bert_tf.commands.")[2]
    yield from (f"# {title}", "", first, "", "```text", f"{command.typed} --FLAG=VALUE ...", "```")
    if rest.strip():
        yield from ("", _escaped_blocks(rest.strip("\n")))
    if any(flag["name"] == _SCRIPT for group in flags.groups.values() for flag in group):
        yield from ("", "It also takes every flag of the training script that it is given.")
    yield from ("", f"```{{program}} {command.target}", "```")
    for heading, group in flags.groups.items():
        yield from ("", f"## {heading}")
        for flag in group:
            yield from ("", *_option(flag))
    yield from ("", "## All commands", "", *_COMMON)


_COMMON = (
    "```{option} --flagfile <file>",
    "Flags from a file, one per line; flags after it on the command line take precedence.",
    "```",
    "",
    "```{option} --help",
    "Print the flags and exit.",
    "```",
)


def _option(flag: dict[str, Any]) -> Iterator[str]:
    name, kind = flag["name"], flag["kind"]
    signature = f"--{name}, --no{name}" if kind == "bool" else f"--{name} <{_kind(flag)}>"
    yield f"````{{option}} {signature}"
    yield as_markdown(_CHOICES.sub("", " ".join(flag["help"].split())))
    facts = [_default(flag)] if _default(flag) else []
    if flag["choices"]:
        facts.append(f"One of {', '.join(f'`{choice}`' for choice in flag['choices'])}.")
    if flag["limits"]:
        facts.append(f"Must {as_markdown(flag['limits'])}.")
    if flag["per_host"]:
        facts.append("May differ between hosts.")
    if facts:
        yield from ("", " ".join(facts))
    yield "````"


def _kind(flag: dict[str, Any]) -> str:
    kinds = {"int": "integer", "float": "number", "string enum": "choice"}
    return kinds.get(flag["kind"], flag["kind"])


def _default(flag: dict[str, Any]) -> str:
    """A sentence about the default; empty if the help text states it."""
    value = flag["default"]
    if flag["required"]:
        return "Required."
    if value in (None, "", []):
        return "" if "default" in flag["help"] else "No default."
    if isinstance(value, bool):
        shown = str(value).lower()
    elif isinstance(value, float):
        shown = f"{value:g}"
    else:
        shown = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"Default: `{shown}`."


def as_markdown(text: str) -> str:
    """Plain text as Markdown, with flags as code."""
    parts = re.split(r"(``?[^`]+``?)", text)
    return "".join(part if place % 2 else _plain(part) for place, part in enumerate(parts))


def _plain(text: str) -> str:
    parts = _FLAG.split(text)
    return "".join(
        f"`{part}`" if place % 2 else re.sub(r"([\\*_\[\]<>{}$~#|])", r"\\\1", part)
        for place, part in enumerate(parts)
    )


def _escaped_blocks(text: str) -> str:
    """Converts a docstring to Markdown: indented lines are code in both, the rest is plain text."""
    return "\n".join(
        line if line.startswith("    ") else as_markdown(line) for line in text.splitlines()
    )


def write_pages(directory: Path) -> None:
    """Writes a page for each command; leaves unchanged pages alone."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        every = commands()
        for command, flags in zip(every, threads.map(flags_of, every)):
            wanted[directory / f"{command.name}.md"] = page(command, flags)
    for stale in set(directory.glob("*.md")) - wanted.keys():
        stale.unlink()
    for path, text in wanted.items():
        write_if_changed(path, text)


def write_if_changed(path: Path, text: str) -> None:
    """Writes a page unless it is unchanged, since a site is rebuilt only where it changed."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def output_argument(about: str, arguments: Sequence[str] | None) -> Path:
    """The one argument of a program that ``about`` describes; None for those of the process."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="what to write")
    return parser.parse_args(arguments).output


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the pages to the given directory."""
    write_pages(output_argument(__doc__, arguments))


if __name__ == "__main__":
    main()
