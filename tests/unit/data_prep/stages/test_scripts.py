"""Vocabularies of many scripts: their tokens give the text back, but for what was asked for."""

from __future__ import annotations

import unicodedata

import pytest

from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from data_prep.stages.vocabulary import Settings, run
from data_prep.text.languages import accents_tell_words_apart

# A text in each script, with marks that tell words apart where the script has some.
TEXTS = {
    "am": "ሰላም ለዓለም ይሁን",
    "ar": "اللُّغَةُ العَرَبِيَّةُ جميلة، عِلم وعَلَم",
    "bn": "বাংলা ভাষা খুব সুন্দর, কুল ও কূল",
    "bo": "བོད་ཡིག་ནི་ཡག་པོ་རེད།",
    "de": "Die Bären hören über Köln, das Haus und die Häuser",
    "el": "Η πότε και η ποτέ, ΩΡΑΊΑ γλώσσα",
    "fr": "L'été à Orléans, le péché et la pêche du pécheur",
    "gu": "ગુજરાતી ભાષા ફૂલ અને ફળ",
    "he": "שָׁלוֹם עוֹלָם, דָּבָר וְדֶבֶר",
    "hi": "फूल और फल हिन्दी में, क़लम",
    "hy": "Հայերեն լեզուն գեղեցիկ է։",
    "ja": "がくせい と かくせい、パリ と ハリ は ちがう。",
    "ka": "ქართული ენა ლამაზია",
    "km": "ភាសាខ្មែរ ពិរោះណាស់",
    "ko": "영화가 아주 좋다, 나는 강에서 보았다",
    "my": "မြန်မာဘာသာ လှပသည်",
    "pa": "ਪੰਜਾਬੀ ਭਾਸ਼ਾ ਸੋਹਣੀ ਹੈ",
    "pl": "Że wysoką izbę, ŁÓDŹ i lody, sad a sąd",
    "ru": "Всё и все, мой МОЙ, ёлка",
    "si": "සිංහල භාෂාව ලස්සනයි",
    "ta": "தமிழ் மொழி அழகானது",
    "te": "తెలుగు భాష అందమైనది",
    "th": "ภาษาไทย ใกล้ ไกล ไม้ ใหม่",
    "vi": "Tiếng Việt: ma má mà mả mã mạ",
    "zh": "我在北京大学学习，很好。",
}


def trained(tmp_path, text, language=None, **options):
    """The tokenizer of a new vocabulary, as another command finds it, and its directory."""
    (tmp_path / "text.txt").write_text(f"{text}\n" * 3, encoding="utf-8")
    characters = len({*text.lower(), *text, *unicodedata.normalize("NFD", text)})
    given = {"character_coverage": 1.0, "num_workers": 1, "language": language, **options}
    for size in range(characters * 2 + 10, 5, -1):  # the largest that the text has words for
        try:
            path = run(Settings(str(tmp_path / "text.txt"), str(tmp_path / "out"), size, **given))
            break
        except UserError:
            continue
    return TokenizerFiles.in_directory(path.parent)


def squeezed(text):
    return "".join(text.split())


def given_back(tokenizer, text):
    assert tokenizer.unk_id not in tokenizer.encode(text)
    return "".join(token.removeprefix("##") for token in tokenizer.tokenize(text))


@pytest.mark.parametrize("language", TEXTS)
def test_tokens_give_the_text_back_in_lower_case(tmp_path, language):
    text = TEXTS[language]
    files = trained(tmp_path, text, language)
    assert (files.do_lower_case, files.strip_accents) == (True, False)
    assert given_back(files.load(), text) == squeezed(text.lower())
    found = files.load().encode_with_offsets(text)
    assert "".join(text[a:b] for a, b in zip(found.starts, found.ends)) == squeezed(text)


@pytest.mark.parametrize("language", TEXTS)
def test_tokens_give_the_text_back(tmp_path, language):
    files = trained(tmp_path, TEXTS[language], language, do_lower_case=False)
    assert (files.do_lower_case, files.strip_accents) == (False, None)
    assert given_back(files.load(), TEXTS[language]) == squeezed(TEXTS[language])


@pytest.mark.parametrize("language", ["fr", "el", "ru"])
def test_accents_go_where_that_is_asked_for(tmp_path, language):
    """As in google-research/bert."""
    text = TEXTS[language]
    files = trained(tmp_path, text, language, strip_accents=True)
    assert (files.do_lower_case, files.strip_accents) == (True, None)
    decomposed = unicodedata.normalize("NFD", text.lower())
    plain = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
    assert given_back(files.load(), text) == squeezed(plain)


def test_the_default_follows_the_language(tmp_path):
    text = "the café is naïve and the end of it"
    (tmp_path / "en").mkdir()
    (tmp_path / "none").mkdir()
    files = trained(tmp_path / "en", text, "en")
    assert (files.do_lower_case, files.strip_accents) == (True, None)
    assert "cafe" in given_back(files.load(), text)
    unknown = trained(tmp_path / "none", text)
    assert unknown.strip_accents is False
    assert "café" in given_back(unknown.load(), text)
    assert not accents_tell_words_apart("simple")
    assert accents_tell_words_apart("de-at")


def test_accents_are_stripped_from_pieces_of_words_only():
    with pytest.raises(UserError, match="--strip_accents is for WordPiece"):
        Settings("text", "out", 100, tokenizer="sentencepiece", strip_accents=True)
