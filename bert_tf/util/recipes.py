"""Recipes: flag files installed with the package, and the network configurations that they name.

``recipes/NAME`` names a recipe from any directory, unless a file of that name exists there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"

_PREFIX = "recipes/"
_SUFFIXES = (".flags", ".json")


def recipe_files() -> Iterator[Path]:
    """All recipes and the JSON files that they name, sorted by name."""
    return (path for path in sorted(RECIPES.iterdir()) if path.suffix in _SUFFIXES)


def with_recipe(path: str) -> str:
    """``path``, or the installed recipe's if it is ``recipes/NAME`` and no such file exists."""
    if not path.startswith(_PREFIX) or Path(path).exists():
        return path
    installed = RECIPES / path[len(_PREFIX) :]
    return str(installed) if installed.is_file() else path


def flags_of_recipe(path: str) -> list[str] | None:
    """The flag lines of an installed recipe; None if :func:`with_recipe` leaves ``path`` alone."""
    installed = with_recipe(path)
    if installed == path:
        return None
    lines = map(str.strip, Path(installed).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]
