"""A tokenizer as bytes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.temporary import TemporaryDirectory


@dataclasses.dataclass(frozen=True)
class TokenizerContent:
    """A tokenizer as bytes, for processes that may not have access to its file.

    Attributes:
      kind: the tokenizer's.
      content: the bytes of the file, or the rules.
      do_lower_case: whether text is lower-cased.
      strip_accents: whether it loses its accents; None if exactly when it is lower-cased.
    """

    kind: str
    content: bytes
    do_lower_case: bool
    strip_accents: bool | None

    @classmethod
    def of(cls, files: TokenizerFiles) -> TokenizerContent:
        """Reads the one file, after checking it like :meth:`TokenizerFiles.load`."""
        kind, lower_case = files.load().kind, files.do_lower_case is not False
        return cls(kind, files.content(), lower_case, files.strip_accents)

    def load(self) -> Tokenizer:
        """Opens the vocabulary."""
        with TemporaryDirectory("vocabulary") as directory:
            path = Path(directory, self.kind)
            path.write_bytes(self.content)
            return TokenizerFiles.of_kind(
                self.kind, path, lower_case=self.do_lower_case, strip_accents=self.strip_accents
            ).load()
