"""Codes of languages, as in the names of Wikipedias: en, de, zh-yue."""

from __future__ import annotations

import re

from bert_tf.errors import UserError

DEFAULT_LANGUAGE = "en"

_CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def validate_language(language: str) -> None:
    """Raises UserError for what cannot be the code of a language."""
    if not _CODE.fullmatch(language):
        raise UserError(
            f"--language={language} is not a language's code in lower case, such as en or de."
        )
