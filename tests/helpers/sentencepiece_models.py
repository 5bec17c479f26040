"""SentencePiece models of a text in many languages, and lines that test how they are read."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from pathlib import Path

import sentencepiece

from tests.helpers.programs import ROOT
from tests.helpers.small_pretraining import stdlib_documentation

_GOLDEN = json.loads((ROOT / "tests/data/google_tokenizer_golden.json").read_text())

SENTENCES = """
The [quick] brown fox isn't lazy: 3,141.59 of 100% (or so) — “quoted”…
Der schnelle Fuchs, groß und braun, springt über Zäune. STRASSE, Straße, ẞ
Ça a été l'œuvre de Noël ; ἐν ἀρχῇ ἦν ὁ λόγος, ΟΔΥΣΣΕΥΣ ΣΟΦΟΣ
Съешь же ещё этих мягких французских булок, да выпей чаю
İstanbul'da ılık bir gün; Iğdır'dan İzmir'e
العربية لغة جميلة، وفيها حروف كثيرة
हिन्दी में यह वाक्य छोटा है
ภาษาไทยไม่มีช่องว่างระหว่างคำ
日本語の文章には、ｶﾀｶﾅと全角ＡＢＣ１２３があります。
中文没有空格，但是有标点符号。
한국어 문장은 띄어쓰기가 있습니다. 가나다라마바사
tabs\tand  several   blanks\u3000wide\u00a0fixed\u200bnone ½ ² ﬁ ㍍
""".strip().splitlines()
# Composed, decomposed, and with blanks around; without names of special tokens and without accents
# in an unusual order.
LINES = [
    form
    for line in (*SENTENCES, *(case["text"] for case in _GOLDEN["cases"]))
    for form in (line, unicodedata.normalize("NFD", line), f"  {line.upper()} ")
    if not re.search("[\ud800-\udfff]|<unk>|\u0302\u0323|\\[(CLS|SEP|MASK|PAD|UNK)]", form)
]


def train_sentencepiece(path: Path, **options) -> Path:
    """Writes a unigram model with data_prep.vocabulary's special pieces.

    ``options`` are the trainer's.
    """
    lines = [*stdlib_documentation(20_000).splitlines(), *SENTENCES * 5]
    model = io.BytesIO()
    special = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        control_symbols="[CLS],[SEP],[MASK]",
        minloglevel=2,
        **{"vocab_size": 900, **special, **options},
    )
    path.write_bytes(model.getvalue())
    return path
