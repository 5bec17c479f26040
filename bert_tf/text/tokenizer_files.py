"""The vocabulary, casing and rules of a tokenizer: files, flags and hashes."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.text.tokenizer import (
    ADDED_TOKENS_NAME,
    JAPANESE,
    SENTENCEPIECE,
    SPM_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_JSON_NAME,
    VOCAB_NAME,
    WORDPIECE,
)
from bert_tf.util.console import Grade, Note, report, say_note
from bert_tf.util.digest import digest_of
from bert_tf.util.environment import launched_rank
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, atomic_open, require_file

if TYPE_CHECKING:
    from bert_tf.text.tokenizer import Tokenizer
    from bert_tf.text.tokenizer_rules import Document

# Unusual entries of vocabularies that were noted; a copy of a vocabulary has the same ones.
_noted: set[str] = set()


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A vocabulary, identified by its hash.

    Attributes:
      source: the vocabulary file, or the file that contains its hash.
      digest: the hash of the vocabulary file's bytes.
      spellings: that hash and, if the entries are known, the hashes of the same entries with other
        line endings.
    """

    source: Path
    digest: str
    spellings: frozenset[str]

    def is_same(self, other: Vocabulary) -> bool:
        """Whether both have the same entries, as far as hashes show."""
        return not self.spellings.isdisjoint(other.spellings)


def vocabulary_named_in(source: PathLike, digest: str | None) -> Vocabulary | None:
    """The vocabulary whose hash a file contains; None if ``digest`` is None."""
    return Vocabulary(Path(source), digest, frozenset({digest})) if digest else None


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
    """The files from which a tokenizer is loaded; empty if unknown.

    Attributes:
      vocab_file: WordPiece entries, one per line (BERT's vocab.txt), or any tokenizer.json.
      spm_model_file: a SentencePiece model instead.
      do_lower_case: whether text is lower-cased; None if unknown.
      strip_accents: whether it loses its accents; None if exactly when it is lower-cased.
      rules: rules other than BERT's own, with the entries.
    """

    vocab_file: Path | None = None
    spm_model_file: Path | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    rules: Document | None = None

    @classmethod
    def from_flags(cls, values: Any) -> TokenizerFiles:
        """Reads --vocab_file, --spm_model_file, --do_lower_case and --strip_accents.

        A vocabulary's rules and casing are those of the files next to it, if they are stated there.
        Raises UserError if both files are given, the given one does not exist, or a flag
        contradicts its rules.
        """
        names = ("vocab_file", "spm_model_file")
        files = {name: getattr(values, name, None) for name in names}
        if all(files.values()):
            raise UserError("--vocab_file and --spm_model_file exclude each other; give only one.")
        found = {name: require_file(path, flag=name) for name, path in files.items() if path}
        given = cls(None, None, values.do_lower_case, getattr(values, "strip_accents", None))
        stated = cls._with_rules(**found)
        lower_case, strip_accents = given._agreed(stated)
        return dataclasses.replace(stated, do_lower_case=lower_case, strip_accents=strip_accents)

    @classmethod
    def in_directory(cls, directory: Path) -> TokenizerFiles:
        """The vocabulary of a model directory, as named by :meth:`copy_to`, and its rules.

        transformers 5 writes WordPiece entries to a tokenizer.json alone.
        """
        vocab, spm, as_json = (
            path if path.is_file() else None
            for path in (directory / name for name in (VOCAB_NAME, SPM_NAME, TOKENIZER_JSON_NAME))
        )
        return cls._with_rules(vocab or (None if spm else as_json), spm, directory)

    @classmethod
    def of_kind(
        cls, kind: str, path: Path, *, lower_case: bool, strip_accents: bool | None
    ) -> TokenizerFiles:
        """The tokenizer of a file that has everything but its casing: see :attr:`content`."""
        if kind == SENTENCEPIECE:
            return cls(None, path, lower_case)
        if kind == WORDPIECE:
            return cls(path, None, lower_case, strip_accents)
        from bert_tf.text.tokenizer_rules import Document

        return cls(path, None, lower_case, strip_accents, Document(path.read_bytes()))

    @classmethod
    def _with_rules(
        cls,
        vocab_file: Path | None = None,
        spm_model_file: Path | None = None,
        directory: Path | None = None,
    ) -> TokenizerFiles:
        """The files with what those next to them say."""
        given = vocab_file or spm_model_file
        directory = given.parent if given else directory
        names = (TOKENIZER_CONFIG_NAME, TOKENIZER_JSON_NAME, ADDED_TOKENS_NAME)
        is_json = vocab_file is not None and vocab_file.suffix == ".json"
        if not directory or not (is_json or any((directory / name).is_file() for name in names)):
            return cls(vocab_file, spm_model_file)
        # Imported here, since few vocabularies come with such files.
        from bert_tf.text.tokenizer_rules import read_casing, read_rules

        rules = read_rules(vocab_file) if vocab_file else read_casing(directory)
        is_usual = spm_model_file or rules.strip_accents == rules.lower_case
        strip_accents = None if is_usual else rules.strip_accents
        return cls(vocab_file, spm_model_file, rules.lower_case, strip_accents, rules.document)

    @property
    def file(self) -> Path | None:
        """The vocabulary file of either kind."""
        return self.vocab_file or self.spm_model_file

    @property
    def kind(self) -> str | None:
        """The kind of tokenizer that reads the file; None without one."""
        if self.rules is not None:
            return self.rules.kind
        if self.file is None:
            return None
        return WORDPIECE if self.vocab_file else SENTENCEPIECE

    @property
    def strips_accents(self) -> bool | None:
        """Whether text loses its accents; None if unknown."""
        return self.do_lower_case if self.strip_accents is None else self.strip_accents

    @property
    def required_file(self) -> Path:
        """The vocabulary file; UserError if there is none."""
        if self.file is None:
            raise UserError("give one of --vocab_file and --spm_model_file; neither was given.")
        return self.file

    def load(self) -> Tokenizer:
        """Opens the vocabulary; text is lower-cased unless ``do_lower_case`` is False.

        SentencePiece models have all other normalization; ``rules`` decide everything. A note names
        unusual entries, once per program. Raises UserError unless there is exactly one file, and if
        it is missing, malformed or lacks special tokens.
        """
        # Imported here, since each is needed for its own files only.
        lower_case = self.do_lower_case is not False
        if self.rules is not None:
            if self.rules.kind == JAPANESE:
                from bert_tf.text.japanese import JapaneseTokenizer

                return JapaneseTokenizer.from_document(self.rules, source=self.required_file)
            from bert_tf.text.library import LibraryTokenizer

            return LibraryTokenizer.from_document(self.rules, source=self.required_file)
        if self.vocab_file and self.spm_model_file:
            raise UserError("give one of --vocab_file and --spm_model_file; both were given.")
        if self.vocab_file:
            from bert_tf.text.wordpiece import WordPieceTokenizer

            path = require_file(self.vocab_file, flag="vocab_file")
            tokenizer = WordPieceTokenizer.from_file(
                path, lower_case=lower_case, strip_accents=self.strip_accents
            )
            if multiprocessing.parent_process() is None:
                _note_unusual_entries(path)
            return tokenizer
        if self.strip_accents:
            raise UserError("--strip_accents is for WordPiece; SentencePiece has its own rules.")
        from bert_tf.text.sentencepiece import SentencePieceTokenizer

        path = require_file(self.required_file, flag="spm_model_file")
        return SentencePieceTokenizer.from_file(path, lower_case=lower_case)

    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary with its hashes; None without a file; OSError if it cannot be read."""
        return self.required_vocabulary() if self.file else None

    def required_vocabulary(self) -> Vocabulary:
        """Like :meth:`vocabulary`, but UserError without a file."""
        content = self.content()
        is_lines = self.vocab_file and self.rules is None
        spellings = _spellings(content) if is_lines else [content]
        digests = frozenset(map(digest_of, spellings))
        return Vocabulary(self.required_file, digest_of(content), digests)

    def with_vocabulary_of(self, other: TokenizerFiles) -> TokenizerFiles:
        """These files, or the other's with their rules if there are none; keeps the casing.

        Raises UserError if the other has one of each kind, since either could be the right one.
        """
        if self.file:
            return self
        if other.vocab_file and other.spm_model_file:
            raise UserError(
                f"{other.vocab_file} and {other.spm_model_file} are two vocabularies of one model; "
                "give the one that it was trained with as --vocab_file or --spm_model_file."
            )
        return dataclasses.replace(
            other, do_lower_case=self.do_lower_case, strip_accents=self.strip_accents
        )

    def with_casing(self, stated: TokenizerFiles | None = None) -> TokenizerFiles:
        """These files with a known casing: their own, the ``stated`` of a model, or the entries'.

        Raises UserError if two of these contradict each other.
        """
        if self.rules is not None:
            if self.strip_accents is not None:
                raise UserError(
                    f"--strip_accents: {self.file} comes with rules of its own, which decide that; "
                    "leave the flag out."
                )
            stated = TokenizerFiles(do_lower_case=self.rules.lower_case)
        stated = stated or TokenizerFiles()
        lower_case, strip_accents = self._agreed(stated)
        if stated.do_lower_case is None:
            from bert_tf.text.vocabulary import resolve_casing

            lower_case = resolve_casing(self.do_lower_case, vocab_file=self.vocab_file)
        strip_accents = None if strip_accents == lower_case else strip_accents
        return dataclasses.replace(self, do_lower_case=lower_case, strip_accents=strip_accents)

    def _agreed(self, stated: TokenizerFiles) -> tuple[bool | None, bool | None]:
        """The casing of these files, or else the stated one; UserError if they contradict."""
        lower_case, strip_accents = stated.do_lower_case, stated.strip_accents
        known = {"do_lower_case": lower_case, "strip_accents": stated.strips_accents}
        for name, value in known.items():
            given = getattr(self, name)
            if None not in (given, value) and given != value:
                raise UserError(
                    f"--{name}={str(given).lower()}, but the files of the model or vocabulary "
                    f"state {str(value).lower()}; leave the flag out."
                )
        return (
            lower_case if self.do_lower_case is None else self.do_lower_case,
            strip_accents if self.strip_accents is None else self.strip_accents,
        )

    def copy_to(self, directory: Path) -> None:
        """Copies the vocabulary to the file of its kind, replacing those of other kinds.

        These are ``vocab.txt``, ``spm.model``, and ``tokenizer.json`` for the rules of one. Does
        nothing if there is no vocabulary.
        """
        if self.file is None:
            return
        content, name = self.content(), VOCAB_NAME if self.vocab_file else SPM_NAME
        if self.rules is not None:
            name, content = self.rules.file
        target = directory / name
        if not target.exists() or target.read_bytes() != content:
            with atomic_open(target, "wb") as writer:
                writer.write(content)
        for other in {VOCAB_NAME, SPM_NAME, TOKENIZER_JSON_NAME} - {name}:
            if directory / other != self.file:  # a published model may be in its own directory
                (directory / other).unlink(missing_ok=True)

    def settings(self) -> dict[str, Any]:
        """What tokenizer_config.json says of the casing and the rules."""
        if self.rules is not None:
            return self.rules.settings
        casing = {"do_lower_case": self.do_lower_case, "strip_accents": self.strip_accents}
        return {name: value for name, value in casing.items() if value is not None}

    def content(self) -> bytes:
        """The bytes of the file, of the vocab.txt that it stands for, or of the rules."""
        if self.rules is not None:
            return self.rules.content
        from bert_tf.text.vocabulary import vocab_content

        return vocab_content(self.required_file)


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
