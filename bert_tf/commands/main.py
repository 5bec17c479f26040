"""The console command bert-tf: all commands of this package under one name.

    bert-tf                      lists the commands
    bert-tf COMMAND --help       describes one of them and its flags
    bert-tf pretrain --input_file=data/records/train --output_dir=model --do_train

Neither the list nor a command's help loads TensorFlow.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import bert_tf
from bert_tf.commands.scripts import SCRIPTS, Script
from bert_tf.util.errors import UserError, exit_on_user_error

# Heading -> command -> its script, or the function that runs it, whose module describes it.
_GROUPS: dict[str, dict[str, Script | str]] = {
    "Data": {
        "data pipeline": "data_prep.pipeline:main",
        "data download": "data_prep.download:main",
        "data extract": "data_prep.extract:main",
        "data filter-language": "data_prep.filter_language:main",
        "data clean": "data_prep.clean:main",
        "data sentences": "data_prep.sentences:main",
        "data shards": "data_prep.shards:main",
        "data vocabulary": "data_prep.vocabulary:main",
        "data create-pretraining-data": "data_prep.create_pretraining_data:main",
        "data convert-records": "data_prep.convert_records:main",
        "inspect": "data_prep.inspect:main",
    },
    "Training": {name: script for name, script in SCRIPTS.items() if script.trains},
    "Planning and starting a training": {
        "doctor": "bert_tf.commands.doctor:run",
        "recipe": "bert_tf.commands.recipe:run",
        "from-deepspeed": "bert_tf.commands.from_deepspeed:run",
        "build-native": "bert_tf.native.build:run",
    },
    "Trained models": {
        "evaluate": SCRIPTS["evaluate"],
        "squad-metrics": "bert_tf.commands.squad_metrics:run",
        "features": SCRIPTS["features"],
        "fill-mask": "bert_tf.commands.fill_mask:run",
        "ask": "bert_tf.commands.ask:run",
        "convert": "bert_tf.commands.convert:run",
        "average-checkpoints": "bert_tf.commands.average_checkpoints:run",
        "extend-vocabulary": "bert_tf.commands.extend_vocabulary:run",
        "export": "bert_tf.commands.export:run",
    },
}
COMMANDS = {name: entry for group in _GROUPS.values() for name, entry in group.items()}
# Accepted but not listed; 'classify' is for the script bert-tf-classify.
_OTHER_NAMES = {"data inspect": "inspect", "classify": "classifier"}

_HELP = ("--help", "-help", "-h", "help")
_WIDTH = 100


def run() -> None:
    """Runs bert-tf or, under older names such as bert-tf-squad, one of its commands."""
    program, *arguments = sys.argv
    command = Path(program).name.removeprefix("bert-tf-")
    if command != Path(program).name:
        arguments = [command, *arguments]
    start = exit_on_user_error(_prepare, arguments)
    start()


def _prepare(arguments: Sequence[str]) -> Callable[[], None]:
    """The function that runs a command line's command, whose flags are put into ``sys.argv``.

    Exits after printing a list or the version; raises UserError for an unknown command.
    """
    first = arguments[0] if arguments else "--help"
    if first == "--version":
        print(f"bert_tf {bert_tf.__version__}")
        sys.exit(0)
    if first in _HELP:
        _print_and_exit(list_of_commands())
    if first == "data" and (len(arguments) == 1 or arguments[1] in _HELP):
        _print_and_exit(list_of_commands("data "))
    name, flags = find_command(arguments)
    entry = COMMANDS[name]
    # --help begins with the docstring of the main program.
    sys.modules["__main__"].__doc__ = f"bert-tf {name}: {about(name)}"
    sys.argv = [f"bert-tf {name}", *flags]
    if isinstance(entry, Script):
        return entry.run
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)


def _print_and_exit(lines: Iterable[str]) -> None:
    print("\n".join(lines))
    sys.exit(0)


def find_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Splits a command line into the name of its command, of one or two words, and the rest.

    Words of a name may be joined by hyphens or underscores. If there is no such command, raises
    UserError with similar names.
    """
    known = {**dict(zip(COMMANDS, COMMANDS)), **_OTHER_NAMES}
    for length in (2, 1):
        name = " ".join(arguments[:length]).replace("_", "-")
        if name in known:
            return known[name], list(arguments[length:])
    words = " ".join(arguments[: 2 if arguments[0] == "data" else 1])
    near = difflib.get_close_matches(words.replace("_", "-"), known)
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    raise UserError(f"{words!r} is not a command of bert-tf{meant} 'bert-tf' lists them.")


def list_of_commands(beginning: str = "") -> Iterator[str]:
    """Yields lines for the commands whose names begin with ``beginning``, under their headings."""
    yield "bert-tf COMMAND [--flags]; 'bert-tf COMMAND --help' describes a command and its flags."
    width = max(map(len, COMMANDS)) + 4
    for heading, commands in _GROUPS.items():
        shown = [name for name in commands if name.startswith(beginning)]
        if shown:
            yield f"\n{heading}:"
        for name in shown:
            summary, _, _ = about(name).partition("\n")
            text = f"{f'  {name}':<{width}}{summary}"
            yield textwrap.fill(text, _WIDTH, subsequent_indent=" " * width)


def about(name: str) -> str:
    """What a command does, as its help says, without importing its module."""
    entry = COMMANDS[name]
    if isinstance(entry, Script):
        return entry.about
    module = entry.partition(":")[0]
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").replace(f"python -m {module}", f"bert-tf {name}")


if __name__ == "__main__":
    run()
