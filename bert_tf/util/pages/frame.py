"""The frame around the content of all HTML pages; each page is one self-contained file."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path
from string import Template

from bert_tf.util.files import PathLike, atomic_open

_FILES = Path(__file__).parent


def read_part(name: str, directory: Path = _FILES) -> str:
    """Reads a template, style sheet or script for a page."""
    return (directory / name).read_text(encoding="utf-8")


def write_framed(
    path: PathLike, title: str, *, main: str, header: str = "", script: str = ""
) -> None:
    """Writes a page atomically; ``main`` and ``header`` are HTML, and no other script can run."""
    policy = ""
    if script:
        # In the page's security policy, so that no other script can run.
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = f"; script-src 'sha256-{digest}'"
    page = Template(read_part("frame.html")).substitute(
        title=escape(title),
        style=read_part("page.css"),
        script_policy=policy,
        header=header,
        main=main,
        script=f"<script>{script}</script>" if script else "",
    )
    with atomic_open(path, "wb") as file:
        # UTF-8 lacks lone surrogates, which JSON may contain; "?" keeps later offsets right.
        file.write(page.encode("utf-8", errors="replace"))
