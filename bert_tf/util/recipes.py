"""Recipes: files of flags that are installed with the package, and the networks that they name.

``recipes/NAME`` names one from any directory, unless there is such a file in the directory itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"

_PREFIX = "recipes/"
_SUFFIXES = (".flags", ".json")


def recipe_files() -> Iterator[Path]:
    """All recipes and the JSON files that they name, in the order of their names."""
    return (path for path in sorted(RECIPES.iterdir()) if path.suffix in _SUFFIXES)


def with_recipe(path: str) -> str:
    """``path``, or for ``recipes/NAME`` without such a file the path of the installed one."""
    if not path.startswith(_PREFIX) or Path(path).exists():
        return path
    installed = RECIPES / path[len(_PREFIX) :]
    return str(installed) if installed.is_file() else path


def flags_of_recipe(path: str) -> list[str] | None:
    """The lines with flags of an installed recipe; None for what :func:`with_recipe` leaves."""
    installed = with_recipe(path)
    if installed == path:
        return None
    lines = map(str.strip, Path(installed).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]
