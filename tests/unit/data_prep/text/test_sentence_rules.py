"""Rules of sentence splitting beyond those of sentencex, by language."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.text import sentence_splitting
from data_prep.text.sentence_rules import RULES, rules_for
from data_prep.text.sentence_splitting import split_sentences

CASES = [
    ("de", ["Die Burg stammt aus dem 19. Jahrhundert.", "Sie ist groß."]),
    ("de", ["Er war Mitglied der 3. Deutschen Synode.", "Danach zog er fort."]),
    ("de", ["Vier Vereine sind vertreten.", "2014 gab es einen Umbau.", "100 Gäste kamen."]),
    ("de", ["Sie lebte dort bis 1990.", "Danach zog sie um."]),
    ("de", ["Im 17. und 18. Jahrhundert wuchs der Ort.", "Es gab 15.", "Der Krieg kam."]),
    ("de", ["Ludwig XIV. Er regierte lange."]),
    ("de", ["Die Aufgaben sind leicht.", "1. Lesen Sie den Text.", "2. Die Lösung steht hinten."]),
    ("de", ["Vgl. Kap. 5 und Abb. 3 im Anhang.", "Der Bau ist geb. Müller gewidmet."]),
    ("de", ["„Ich gehe.", "Du bleibst hier“, sagte er.", "Dann war Ruhe."]),
    ("de", ["Sie rief: „Komm!“ und ging.", "„Nein“, sagte er.", "„Warum?“"]),
    ("en", ["They laughed.", "(Laughter.)", "The hymn was sung."]),
    ("en", ["It was long (far too long, he thought.)", "Nobody came."]),
    ("en", ["He was in the shop for hours ...", "I had to wait.", "So it goes..."]),
    ("en", ['"I will stay.', 'You may go," she said.', '"Stop!" he cried.']),
    ("en", ["Is it so?", "It is. :-)"]),
    ("en", ["The U.S. Army met Mr. Smith.", "In 1990 he left.", "20 men came."]),
    ("da", ["Det skete den 3. juli.", "2014 kom der flere med.", "Han bor i Kbh. K nu."]),
    ("no", ["Dommen falt søndag 11. oktober.", "Han kom kl. 12 med bl.a. Per.", "Så gikk de ut."]),
    ("no", ["Hva må du trene på da? spør pappa.", "Ingenting."]),
    ("cs", ["Narodil se 5. května.", "2014 zemřel."]),
    ("sk", ["Prišiel prvý.", "24. júla sa vrátil na Zem."]),
    ("pl", ["W kościele św. Wojciecha odprawiono mszę.", "W 53. min. padł gol.", "To gen. Nowak."]),
    ("hu", ["A könyv 1949. október 18-án jelent meg.", "A II. Rákóczi Ferenc utca hosszú."]),
    ("fi", ["Se oli 17. vuosisadalla.", "2 artikla on lyhyt."]),
    ("et", ["See oli 17. sajandil.", "Ta sündis 1995. aastal Tartus."]),
    ("lv", ["Tas bija 1995. gada vasarā.", "Pēc tam viņi aizgāja."]),
    ("hr", ["Privatiziran je 2006. godine.", "Utakmica je bila 11. lipnja."]),
    ("sl", ["Rojen je 15. julija 1991 v Celju.", "Prišel je dr. Novak."]),
    ("ru", ["Он родился в 1879 г. в городе Ульм.", "2014 год был тёплым."]),
    ("fr", ["Il est venu.", "« Tu restes ? » demanda-t-il.", "2014 fut bon."]),
]


@pytest.mark.parametrize(("language", "sentences"), CASES)
def test_sentences_of_a_language(language, sentences):
    found = split_sentences(" ".join(sentences), language)
    assert [sentence.strip() for sentence in found] == sentences


def test_varieties_have_the_rules_of_their_language():
    assert rules_for("de-at") is RULES["de"]
    assert rules_for("zh") is rules_for("zh-yue") is None


def test_other_languages_are_left_to_sentencex():
    text = "ეს არის წინადადება. ეს მეორეა."
    assert split_sentences(text, "ka") == ["ეს არის წინადადება. ", "ეს მეორეა."]


PIECES = st.sampled_from(
    ["Das", "am", "der", "3.", "19.", "1990.", "XIV.", "Kap.", "Dr.", "J.", "B.T.", "war", "ist."]
    + ["Wort.", "wort!", "(wort.)", "(Er.)", "...", ". . .", "…", "I", "2014", "5", "?", "!!", "«"]
    + ["»", '"', "„Ja.", "Nein.“", "``", "''", "“", "[1]", ":-)", "–", "é.", "Я.", "一。", "-5.-6."]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=40), st.sampled_from(sorted(RULES)), st.sampled_from(["", " "]))
def test_nothing_is_lost_and_each_sentence_has_a_word(pieces, language, joiner):
    text = joiner.join(pieces)
    sentences = split_sentences(text, language)
    assert "".join(sentences) == text
    if len(sentences) > 1:
        assert all(any(map(str.isalnum, sentence)) for sentence in sentences)


@pytest.mark.parametrize(
    "piece", [". ", "... I ", '" ', "1. ", "(a.) ", "«» ", "Das. 5 ", '. "', "a", ".", "``"]
)
@pytest.mark.parametrize("language", ["en", "de", "no"])
def test_what_a_rule_sees_is_bounded(piece, language, monkeypatch):
    """The pieces of text that the rules take out are few and short, however long the text is."""
    rules = rules_for(language)
    text = " ".join((piece * 4000).split())[:16_000]
    seen = []
    original = rules._ends_sentence

    def record(before, word, is_whole):
        seen.append(len(before))
        return original(before, word, is_whole)

    monkeypatch.setattr(rules, "_ends_sentence", record)
    rules.starts(text, lambda shown: sentence_splitting._starts("en", shown))
    assert max(seen, default=0) <= 64
