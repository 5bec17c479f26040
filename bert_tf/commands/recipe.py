"""Prints the path of an installed recipe; without a name, lists all.

    bert-tf recipe bert_base_phase1
    bert-tf pretrain --flagfile=recipes/bert_base_phase1.flags --input_file=... --output_dir=phase1

As in the second command, --flagfile and other flags find ``recipes/NAME`` from any directory.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from pathlib import Path

from bert_tf.cli.flags import run_command
from bert_tf.util.errors import UserError
from bert_tf.util.recipes import recipe_files


def find_recipe(name: str) -> Path:
    """The file of a recipe, named with or without its suffix; UserError if there is none."""
    files = {path.name: path for path in recipe_files()}
    files |= {path.stem: path for path in files.values() if path.suffix == ".flags"}
    wanted = name.removeprefix("recipes/")
    if wanted in files:
        return files[wanted]
    near = difflib.get_close_matches(wanted, files)
    meant = f"; did you mean {' or '.join(near)}?" if near else ";"
    raise UserError(f"{name!r} is not a recipe{meant} 'bert-tf recipe' lists them.")


def main(arguments: Sequence[str]) -> None:
    """Prints the paths of the named recipes, or all names with their first comment."""
    names = arguments[1:]
    for name in names:
        print(find_recipe(name))
    if not names:
        files = [path for path in recipe_files() if path.suffix == ".flags"]
        width = max(len(path.stem) for path in files)
        for path in files:
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            print(f"{path.stem:<{width}}  {first.removeprefix('# ')}")


run = functools.partial(run_command, main, takes_words=True)


if __name__ == "__main__":
    run()
