"""Text and a vocabulary that every machine has: the standard library's documentation."""

from __future__ import annotations

import collections
import json
from pathlib import Path

from bert_tf.text.basic import BasicTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.vocabulary import write_vocab_file
from bert_tf.util.files import PathLike
from data_prep.stages.vocabulary import Settings, train_wordpiece
from tests.helpers.programs import ROOT
from tests.helpers.small_pretraining import stdlib_documentation

_GOLDEN = ROOT / "tests/data/google_tokenizer_golden.json"


def odd_and_plain_texts() -> list[str]:
    """English with code in it, and lines of every writing that tokenizers differ on."""
    cases = json.loads(_GOLDEN.read_text())["cases"]
    odd = "\n".join(case["text"].replace("\n", " ") for case in cases)
    return [stdlib_documentation(50_000)[:60_000], odd]


def write_small_vocabulary(path: Path, *, lower_case: bool, size: int = 1500) -> Path:
    """A WordPiece vocabulary of these texts, their rarest characters left out."""
    basic = BasicTokenizer(lower_case=lower_case)
    words = collections.Counter(basic.words("\n".join(odd_and_plain_texts())))
    settings = Settings("", "", size, character_coverage=0.999)
    write_vocab_file(path, train_wordpiece(words, settings))
    return path


def load_tokenizer(
    *,
    vocab_file: PathLike | None = None,
    spm_model_file: PathLike | None = None,
    do_lower_case: bool = True,
) -> Tokenizer:
    """A vocabulary with BERT's own rules."""
    vocab, spm = (Path(path) if path else None for path in (vocab_file, spm_model_file))
    return TokenizerFiles(vocab, spm, do_lower_case).load()
