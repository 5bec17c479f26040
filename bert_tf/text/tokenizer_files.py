"""The vocabulary and casing of a tokenizer: files, flags and hashes."""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.util.console import Grade, Note, report, say_note
from bert_tf.util.environment import launched_rank
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, atomic_open, require_file
from bert_tf.util.temporary import TemporaryDirectory

if TYPE_CHECKING:
    from bert_tf.text.tokenizer import Tokenizer

VOCAB_NAME = "vocab.txt"
SPM_NAME = "spm.model"
TOKENIZER_JSON_NAME = "tokenizer.json"

# In the tokenizer_config.json of a model without its vocabulary.
VOCABULARY_SHA256_KEY = "vocabulary_sha256"

# Unusual entries of vocabularies that were noted; a copy of a vocabulary has the same ones.
_noted: set[str] = set()


def load_tokenizer(
    *,
    vocab_file: PathLike | None = None,
    spm_model_file: PathLike | None = None,
    do_lower_case: bool = True,
) -> Tokenizer:
    """Opens a vocabulary; exactly one of the two files must be given.

    Args:
      vocab_file: WordPiece entries, one per line (BERT's vocab.txt).
      spm_model_file: a SentencePiece model.
      do_lower_case: WordPiece: lower-case and strip accents, like google-research/bert.
        SentencePiece: lower-case before the model; other normalization is part of the model.

    Raises:
      UserError: not exactly one file is given, or it is missing, malformed or lacks special tokens.
    """
    if vocab_file and not spm_model_file:
        from bert_tf.text.wordpiece import WordPieceTokenizer

        path = require_file(vocab_file, flag="vocab_file")
        return WordPieceTokenizer.from_file(path, lower_case=do_lower_case)
    if vocab_file or not spm_model_file:
        given = "both were given" if vocab_file else "neither was given"
        raise UserError(f"give one of --vocab_file and --spm_model_file; {given}.")
    # Imported here, since sentencepiece is needed only for its own files.
    from bert_tf.text.sentencepiece import SentencePieceTokenizer

    path = require_file(spm_model_file, flag="spm_model_file")
    return SentencePieceTokenizer.from_file(path, lower_case=do_lower_case)


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A vocabulary, identified by its hash.

    Attributes:
      source: the vocabulary file, or the file that contains its hash.
      sha256: the hash of the vocabulary file's bytes.
      spellings: that hash and, if the entries are known, the hashes of the same entries with other
        line endings.
    """

    source: Path
    sha256: str
    spellings: frozenset[str]

    def is_same(self, other: Vocabulary) -> bool:
        """Whether both have the same entries, as far as hashes show."""
        return not self.spellings.isdisjoint(other.spellings)


def vocabulary_named_in(source: PathLike, sha256: str | None) -> Vocabulary | None:
    """The vocabulary whose hash a file contains; None if ``sha256`` is None."""
    return Vocabulary(Path(source), sha256, frozenset({sha256})) if sha256 else None


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
    """The files from which a tokenizer is loaded; empty if unknown.

    Attributes:
      vocab_file: WordPiece entries, one per line (BERT's vocab.txt), or in a tokenizer.json.
      spm_model_file: a SentencePiece model instead.
      do_lower_case: whether text is lower-cased; None if unknown.
    """

    vocab_file: Path | None = None
    spm_model_file: Path | None = None
    do_lower_case: bool | None = None

    @classmethod
    def from_flags(cls, values: Any) -> TokenizerFiles:
        """Reads --vocab_file, --spm_model_file and --do_lower_case.

        Raises UserError if both files are given or the given one does not exist.
        """
        if values.vocab_file and values.spm_model_file:
            raise UserError("--vocab_file and --spm_model_file exclude each other; give only one.")
        files = {name: getattr(values, name) for name in ("vocab_file", "spm_model_file")}
        return cls(
            **{name: require_file(path, flag=name) for name, path in files.items() if path},
            do_lower_case=values.do_lower_case,
        )

    @classmethod
    def in_directory(cls, directory: Path, *, do_lower_case: bool | None) -> TokenizerFiles:
        """The vocabulary of a model directory, as named by :meth:`copy_to`.

        transformers 5 writes WordPiece entries to a tokenizer.json alone.
        """
        vocab, spm, as_json = (
            path if path.is_file() else None
            for path in (directory / name for name in (VOCAB_NAME, SPM_NAME, TOKENIZER_JSON_NAME))
        )
        return cls(vocab or (None if spm else as_json), spm, do_lower_case)

    @property
    def file(self) -> Path | None:
        """The vocabulary file of either kind."""
        return self.vocab_file or self.spm_model_file

    @property
    def required_file(self) -> Path:
        """The vocabulary file; UserError if there is none."""
        if self.file is None:
            raise UserError("give one of --vocab_file and --spm_model_file; neither was given.")
        return self.file

    def load(self) -> Tokenizer:
        """Opens the vocabulary; text is lower-cased unless ``do_lower_case`` is False.

        A note names unusual entries, once per program. Raises UserError unless there is exactly one
        file, and if it is missing or malformed.
        """
        tokenizer = load_tokenizer(
            vocab_file=self.vocab_file,
            spm_model_file=self.spm_model_file,
            do_lower_case=self.do_lower_case is not False,
        )
        if self.vocab_file and multiprocessing.parent_process() is None:
            _note_unusual_entries(self.vocab_file)
        return tokenizer

    def read(self) -> TokenizerContent:
        """Reads the one file, after checking it like :meth:`load`."""
        self.load()
        kind = "vocab_file" if self.vocab_file else "spm_model_file"
        content = self._content()
        return TokenizerContent(kind, content, do_lower_case=self.do_lower_case is not False)

    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary with its hashes; None without a file; OSError if it cannot be read."""
        return self.required_vocabulary() if self.file else None

    def required_vocabulary(self) -> Vocabulary:
        """Like :meth:`vocabulary`, but UserError without a file."""
        content = self._content()
        spellings = _spellings(content) if self.vocab_file else [content]
        return Vocabulary(self.required_file, _sha256(content), frozenset(map(_sha256, spellings)))

    def with_vocabulary_of(self, other: TokenizerFiles) -> TokenizerFiles:
        """These files, or the other's if there are none; keeps the casing.

        Raises UserError if the other has a vocabulary of each kind, since either could be the right
        one.
        """
        if self.file:
            return self
        if other.vocab_file and other.spm_model_file:
            raise UserError(
                f"{other.vocab_file} and {other.spm_model_file} are two vocabularies of one model; "
                "give the one that it was trained with as --vocab_file or --spm_model_file."
            )
        return dataclasses.replace(other, do_lower_case=self.do_lower_case)

    def with_casing(self, stated: bool | None) -> TokenizerFiles:
        """These files with a known casing: their own, the model's or that of the entries.

        Args:
          stated: the casing recorded in the model's files, if any.

        Raises:
          UserError: two of these contradict each other.
        """
        from bert_tf.text.vocabulary import resolve_casing

        casing = resolve_casing(self.do_lower_case, stated=stated, vocab_file=self.vocab_file)
        return dataclasses.replace(self, do_lower_case=casing)

    def copy_to(self, directory: Path) -> None:
        """Copies the vocabulary to ``vocab.txt`` or ``spm.model``, replacing either.

        Does nothing if there is no vocabulary.
        """
        if self.file is None:
            return
        name, other = (VOCAB_NAME, SPM_NAME) if self.vocab_file else (SPM_NAME, VOCAB_NAME)
        target = directory / name
        if not target.exists() or not target.samefile(self.file):
            with atomic_open(target, "wb") as writer:
                writer.write(self._content())
        (directory / other).unlink(missing_ok=True)

    def _content(self) -> bytes:
        """The bytes of the file, or of the vocab.txt that it stands for."""
        from bert_tf.text.vocabulary import vocab_content

        return vocab_content(self.required_file)


@dataclasses.dataclass(frozen=True)
class TokenizerContent:
    """A tokenizer as bytes, for processes that may not have access to its file.

    Attributes:
      kind: the kind of file, ``vocab_file`` or ``spm_model_file``.
      content: the bytes of the file.
      do_lower_case: whether text is lower-cased.
    """

    kind: str
    content: bytes
    do_lower_case: bool

    def load(self) -> Tokenizer:
        """Opens the vocabulary."""
        with TemporaryDirectory("vocabulary") as directory:
            path = Path(directory, self.kind)
            path.write_bytes(self.content)
            return load_tokenizer(**{self.kind: path}, do_lower_case=self.do_lower_case)


def _note_unusual_entries(path: Path) -> None:
    from bert_tf.text.vocabulary import unusual_entries

    found = unusual_entries(path)
    if found and found not in _noted and launched_rank() == 0:
        _noted.add(found)
        sentence = (
            f"vocabulary {path} has {found}; ids are line numbers from 0, as in transformers, so "
            "leave the file as it is"
        )
        say_note(Note(Grade.HINT, "vocabulary", sentence), to=report)


def _spellings(content: bytes) -> Iterator[bytes]:
    """A vocab.txt as it is and with each kind of line ending, with and without a final one."""
    yield content
    entries = [line.removesuffix(b"\r") for line in content.rstrip(b"\r\n").split(b"\n")]
    for line_end in (b"\n", b"\r\n"):
        joined = line_end.join(entries)
        yield from (joined, joined + line_end)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
