"""Languages: codes, and which one's rules a text gets."""

from __future__ import annotations

import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.util.errors import UserError
from data_prep.sources.mediawiki_dump import language_of
from data_prep.stages import clean, extract, sentences
from data_prep.text.languages import choose_language, contradicts, is_language, validate_language
from tests.helpers.mediawiki import dump, page

TEXT = "Die Burg stammt aus dem 19. Jahrhundert und steht am Fluss. 2014 wurde sie umgebaut."


@pytest.mark.parametrize("code", ["en", "de", "de-at", "sr-latn", "zh-min-nan", "simple", "nds-nl"])
def test_codes(code):
    validate_language(code)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("deutsch", "did you mean de\\?"),
        ("German", "did you mean de\\?"),
        ("DE", "did you mean de\\?"),
        ("pt_BR", "did you mean pt-br\\?"),
        ("jp", "did you mean ja\\?"),
        ("francais", "did you mean fr\\?"),
        ("qqqq", "of a language; give one"),
        ("", "of a language; give one"),
        ("../de", "such as en, de or zh-yue"),
        ("de-", "such as en, de or zh-yue"),
    ],
)
def test_what_is_not_a_code(given, hint):
    assert not is_language(given)
    with pytest.raises(UserError, match=f"--language={given} is not the code.*{hint}"):
        validate_language(given)


@pytest.mark.parametrize(
    ("head", "language"),
    [
        (dump(), "de"),
        (dump(language="zh-Hant"), "zh-hant"),
        (b"<mediawiki version='0.11' xml:lang='nb'\n>", "nb"),
        (dump(language="x-default"), None),
        (b'<mediawiki version="0.11"><page xml:lang="de">', None),
        (b"", None),
    ],
)
def test_language_of_a_dump(head, language):
    assert language_of(head) == language


def test_choice():
    assert choose_language("fr", ["de"]).language == "fr"
    assert choose_language(None, ["de"]) == ("de", "the language of the dump")
    assert choose_language(None, []).language == "en"
    with pytest.raises(UserError, match=r"several languages \(de, fr\).*--language"):
        choose_language(None, ["fr", "de"])
    assert contradicts("fr", ["de"])
    assert not contradicts("fr", [])
    assert not contradicts("no", ["nb"])
    assert not contradicts("de-at", ["de"])


def _extract(tmp_path, *languages):
    inputs = tmp_path / "dumps"
    inputs.mkdir()
    for language in languages:
        path = inputs / f"{language}.xml"
        path.write_bytes(dump(page("Burg", f"{language}. {TEXT} " * 4), language=language))
    return extract.run(extract.Settings(str(inputs), str(tmp_path / "text"), num_workers=1))


def _split(directory, tmp_path, language=None):
    out = tmp_path / f"sentences_{language}"
    settings = sentences.Settings(str(directory), str(out), language=language, num_workers=1)
    return sentences.run(settings)


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_dump_is_split_by_the_rules_of_its_language(tmp_path, capsys, cleaned):
    text = _extract(tmp_path, "de")
    if cleaned:
        settings = clean.Settings(str(text), str(tmp_path / "clean"), max_repeated_share=1)
        text = clean.run(settings)
    out = _split(text, tmp_path)
    said = capsys.readouterr().err
    assert "split by the rules of de (the language of the dump)" in said
    assert "2014 wurde sie umgebaut." in (out / "sentences-00000.txt").read_text().splitlines()
    assert read_manifest(out).parameters["language"] == "de"
    again = _split(text, tmp_path, "de")
    assert (again / "sentences-00000.txt").read_bytes() == (
        out / "sentences-00000.txt"
    ).read_bytes()
    assert "from a dump in" not in capsys.readouterr().err


def test_the_flag_wins_and_a_contradiction_is_said(tmp_path, capsys):
    out = _split(_extract(tmp_path, "de"), tmp_path, "fr")
    said = capsys.readouterr().err
    assert "comes from a dump in de, but --language=fr is given" in said
    assert "by the rules of fr (--language)" in said
    assert read_manifest(out).parameters["language"] == "fr"


def test_dumps_in_several_languages_need_a_choice(tmp_path, capsys):
    text = _extract(tmp_path, "de", "fr")
    assert "several languages (de, fr)" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"several languages \(de, fr\)"):
        _split(text, tmp_path)
    _split(text, tmp_path, "de")
    assert "dump in" not in capsys.readouterr().err


def test_other_text_has_the_default(tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_text("One. Two.")
    out = _split(path, tmp_path)
    assert "by the rules of en (the default; --language names another)" in capsys.readouterr().err
    assert read_manifest(out).parameters["language"] == "en"
