"""Reading and writing BERT's ``vocab.txt``: one entry a line, the line number is the id."""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf.errors import UserError
from bert_tf.files import PathLike, atomic_open
from bert_tf.text.tokenizer import SpecialIds

# The order in which our own vocabularies begin; other files may have them anywhere.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_vocab_file(path: PathLike) -> list[str]:
    """The entries of a vocab.txt, without the white space around them (also Unicode's).

    Raises UserError for bytes that are not UTF-8, blank lines and repeated entries.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        # Only line feeds end an entry: the Chinese vocabulary has U+2028 as an entry of its own.
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"vocabulary {path} is not UTF-8 text (byte {error.start}); give a vocab.txt."
        ) from error
    if not lines[-1]:
        del lines[-1]
    first_lines: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip(" \t\r"):
            raise UserError(f"vocabulary {path}: line {number} is blank; remove it.")
        entry = line.strip()
        if entry in first_lines:
            raise UserError(
                f"vocabulary {path}: {entry!r} is in line {first_lines[entry]} and line {number}; "
                "every entry must be there once."
            )
        first_lines[entry] = number
    return list(first_lines)


def write_vocab_file(path: PathLike, entries: Sequence[str]) -> None:
    """Writes entries, one a line, atomically."""
    with atomic_open(path) as file:
        file.writelines(f"{entry}\n" for entry in entries)


def find_special_ids(entries: Sequence[str], *, path: PathLike) -> SpecialIds:
    """Where BERT's five special entries are; raises UserError naming those that are missing."""
    missing = [token for token in SPECIAL_TOKENS if token not in entries]
    if missing:
        raise UserError(
            f"vocabulary {path} has no {', '.join(missing)}; "
            "give the vocab.txt of a BERT model or one made by data_prep.vocabulary."
        )
    return SpecialIds(*(entries.index(token) for token in SPECIAL_TOKENS))


def is_cased(entries: Sequence[str]) -> bool | None:
    """Whether a vocabulary was made from text with capitals, as far as its entries tell.

    Returns: True if an entry has a capital, False if there are small letters only, None if the
      script has no case. Entries in brackets, such as [CLS] and <S>, do not count.
    """
    words = [entry for entry in entries if (entry[:1], entry[-1:]) not in (("[", "]"), ("<", ">"))]
    if any(word != word.lower() for word in words):
        return True
    return False if any(word != word.upper() for word in words) else None


def resolve_casing(given: bool | None, *, said: bool | None, vocab_file: PathLike | None) -> bool:
    """Whether to lower-case text.

    Args:
      given: what the user asks for, if anything.
      said: what stands beside the model, if anything.
      vocab_file: WordPiece entries, which show it in most languages; None for SentencePiece.

    Raises:
      UserError: two of them contradict each other; scores would be low, and nothing would say why.
    """
    if given is not None and said is not None and given != said:
        raise UserError(
            f"--do_lower_case={str(given).lower()}, but the model's tokenizer_config.json says "
            f"{str(said).lower()}; drop the flag, or correct that file if it is wrong."
        )
    cased = is_cased(read_vocab_file(vocab_file)) if vocab_file else None
    asked = said if given is None else given
    if asked is None:
        return cased is not True
    if cased is not None and asked == cased:
        found = "entries with capitals" if cased else "no entry with a capital"
        raise UserError(
            f"{vocab_file} has {found}, which does not go with --do_lower_case="
            f"{str(asked).lower()}; give the other value, or the vocabulary of the model."
        )
    return asked
