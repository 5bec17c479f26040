"""Templates that are part of a sentence, against what the wikis show in their place."""

from __future__ import annotations

import mwparserfromhell
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.text import mediawiki_templates
from data_prep.text.mediawiki_templates import render_template, subscript, superscript
from data_prep.text.mediawiki_text import Options, plain_text


def shown(markup, language="en"):
    """The paragraphs of a page, joined by bars."""
    return "|".join(plain_text(markup, Options(frozenset(), language=language)))


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("1417{{ndash}}1701", "1417–1701"),
        ("a war{{snd}}the last", "a war – the last"),
        ("readable{{mdash}}fast", "readable—fast"),
        ("on 15{{nbsp}}September, 2.5{{thinsp}}m{{spaces|5}}deep", "on 15 September, 2.5 m deep"),
        ("''Eagle''{{'s}} pads, ''Time''{{'}}s", "Eagle's pads, Time's"),
        ("{{nowrap|[[Pope Clement IV|Clement]]}} and {{nobr|more}}", "Clement and more"),
        ("the word {{lang|grc|ἀναρχία}} is", "the word ἀναρχία is"),
        ("({{lang-sq|Shqipëri}}; {{lang-ar|{{big|واحد}}}})", "(Shqipëri; واحد)"),
        ("{{transl|ar|al-Jazāʾir}} or {{transl|ar|DIN|al-Ǧazāʾir}}", "al-Jazāʾir or al-Ǧazāʾir"),
        ("{{nihongo|'''Aikido'''|合気道|Aikidō|lead=yes}} is", "Aikido (合気道, Aikidō) is"),
        ("Taiwan ({{zh|t=臺灣|p=Táiwān}})", "Taiwan (臺灣; Táiwān)"),
        ("by {{ill|Anna Schmidt|de|Anna Schmidt (Malerin)}}.", "by Anna Schmidt."),
        ("He said: {{quote|Never again.|Someone}} It was", "He said:|Never again.|It was"),
        ("the ship {{HMS|Ajax|22|6}} and", "the ship HMS Ajax and"),
        ("the letter {{angbr|a}} for {{IPA|/a/}}", "the letter ⟨a⟩ for /a/"),
        ("Andorra ({{IPA-ca|ənˈdorə}}; {{IPA|ənˈdorə}}) is", "Andorra is"),
        ("Unknown{{citation needed|date=May 2015}} and {{whatever|text}} this.",
         "Unknown and this."),
    ],
)  # fmt: skip
def test_words(markup, text):
    assert shown(markup) == text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("{{convert|1300|mi|km}}", "1,300 miles"),
        ("{{convert|1|mi|km}} {{convert|1|ft|m}}", "1 mile 1 foot"),
        ("{{Convert|1300|mi|km|abbr=on}} {{cvt|80|acre|ha}}", "1,300 mi 80 acres"),
        ("a {{convert|9|mi|km|0|adj=on}} walk", "a 9-mile walk"),
        ("{{convert|5|to|10|km|mi}} {{convert|5|-|10|C|F}}", "5 to 10 kilometres 5–10 °C"),
        ("{{convert|193.3|by|69.5|mi|km}}", "193.3 by 69.5 miles"),
        ("{{convert|6|ft|4|in|cm|0}}", "6 feet 4 inches"),
        ("{{convert|100|kg|lb|st}}", "100 kilograms"),
        ("{{convert|2.5|m|ft|sp=us}}", "2.5 meters"),
        ("{{convert|-27|°F}} {{convert|652000|km2|sqmi|abbr=on}}", "−27 °F 652,000 km²"),
        ("{{convert|8|e6acre|ha}} {{convert|2|koilbbl/d}}",
         "8 million acres 2 thousand barrels per day"),
        ("{{convert|7|furlong|m}} {{convert|7||adj=on}}", "7 furlong 7"),
        ("{{convert}}{{convert|mi}}{{convert|x|y}}.1", ".1"),
        ("{{val|6.241|e=18|u=C}} {{val|5.0|0.2|ul=km}}", "6.241×10¹⁸ C 5.0±0.2 km"),
        ("5.98{{e|24}} kg", "5.98×10²⁴ kg"),
        ("{{frac|3}} {{frac|2|3}} {{frac|1|2|3}}", "1/3 2/3 1 2/3"),
        ("{{chem|H|2|SO|4}} {{chem|SO|4|2-}} {{chem|238|U}}", "H₂SO₄ SO₄²⁻ ²³⁸U"),
        ("{{chem2|H2O}} {{chem2|SO4(2-)}} {{chem2|Na+}}", "H₂O SO₄²⁻ Na⁺"),
        ("{{chem|C|''n''|H|2''n''+2}}", "CₙH₂ₙ₊₂"),
        ("{{formatnum:3003}} m, {{US$|5}}, {{£|7 million}}", "3003 m, $5, £7 million"),
        ("the {{RailGauge|1435mm}} gauge", "the 1,435 mm gauge"),
    ],
)  # fmt: skip
def test_quantities(markup, text):
    assert shown(markup) == text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("{{birth date|1809|02|12}} {{start date|1969|7|20|df=y}}",
         "February 12, 1809 20 July 1969"),
        ("{{death date and age|1865|4|15|1809|2|12}} {{end date|1999|3}}",
         "April 15, 1865 March 1999"),
        ("{{as of|2014}} {{As of|2010|12|31|lc=y}} {{as of|2015|May|since=y}}",
         "As of 2014 as of 31 December 2010 Since May 2015"),
        ("{{as of|2015|alt=in 2015}}{{as of}}", "in 2015"),
        ("{{circa|1500}} {{circa|1500|1510}} {{fl.|1480}} {{reign|1509|1547}}",
         "c. 1500 c. 1500 – c. 1510 fl. 1480 r. 1509–1547"),
        ("born {{circa}} 1500, {{fl.}} 1530", "born c. 1500, fl. 1530"),
        ("{{OldStyleDate|February 2|1905|January 20}}", "February 2 [O.S. January 20] 1905"),
    ],
)  # fmt: skip
def test_dates(markup, text):
    assert shown(markup) == text


@pytest.mark.parametrize(
    ("language", "markup", "text"),
    [
        ("de", "eine Werkstatt ({{enS|Maintenance Facility}})",
         "eine Werkstatt (Maintenance Facility)"),
        ("de", "Moskau ({{RuS|Москва|Moskwa}}), {{lang|en|the}}", "Moskau (Москва, Moskwa), the"),
        ("de", '{{"|Das ist gut}}, sagte er', "„Das ist gut“, sagte er"),
        ("de", "1939{{ndash}}1945, 17.{{nbsp}}Juni", "1939–1945, 17. Juni"),
        ("de", "auf {{Höhe|2962|DE-NN|link=true}}", "auf 2962 m"),
        ("de", "* {{JULGREGDATUM|25|12|1642|Link=true}}", ""),
        ("de", "am {{JULGREGDATUM|25|12|1642|Link=true}}", "am 25. Dezember 1642"),
        ("de", "{{ZahlExp|6,241|18|suffix=C}} {{Bruch|1|2}}", "6,241 · 10¹⁸ C 1/2"),
        ("en", "{{enS|x}} and {{\"|so}}", 'and "so"'),
        ("fr", "le {{1er|mai|1890}}, au {{s-|XIX}} et au {{s-|I|er}}, le 2{{e}}",
         "le 1er mai 1890, au XIXe siècle et au Ier siècle, le 2e"),
        ("fr", "{{unité|300|km|2}} {{unité|5|km||h|-1}} {{unité|7}} {{citation|Oui.}}",
         "300 km² 5 km·h⁻¹ 7 « Oui. »"),
    ],
)  # fmt: skip
def test_of_a_language(language, markup, text):
    assert shown(markup, language) == text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("10<sup>6</sup> m<sup>−2</sup>", "10⁶ m⁻²"),
        ("H<sub>2</sub>O, Na<sup>+</sup>, <sup>14</sup>C", "H₂O, Na⁺, ¹⁴C"),
        ("x<sup>''n''+1</sup> and C<sub>2''n''+2</sub>", "xⁿ⁺¹ and C₂ₙ₊₂"),
        ("the 19<sup>th</sup>, XIX<sup>e</sup>", "the 19th, XIXe"),
        ("10<sup>6.5</sup>, s<sub>1/2</sub>, CO<sub>2,</sub>", "10^6.5, s_1/2, CO₂,"),
        ("5–7<sup>(8–10)</sup> a<sub>max</sub> b<sup></sup>", "5–7(8–10) amax b"),
    ],
)
def test_raised_text_makes_no_other_number(markup, text):
    assert shown(markup) == text


def test_characters_of_raised_numbers():
    assert superscript("0123456789") == "⁰¹²³⁴⁵⁶⁷⁸⁹"
    assert subscript("0123456789") == "₀₁₂₃₄₅₆₇₈₉"


NAMES = sorted({
    *mediawiki_templates._RULES,
    *(name for rules in mediawiki_templates._RULES_OF_LANGUAGES.values() for name in rules),
    *("lang-de", "enS", "formatnum:5", "unknown"),
})  # fmt: skip
VALUES = [
    *("", " ", "0", "1", "-27", "2014", "13", "1.5e3", "km", "ft", "to", "-", "text", "e=6"),
    *("df=y", "adj=on", "abbr=on", "sp=us", "alt=x", "1=y", "''n''", "[[a|b]]", "{{val|1}}"),
]


@given(
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(VALUES), max_size=6),
    st.sampled_from(["de", "fr"]),
)
@settings(max_examples=500, deadline=None)
def test_any_arguments(name, values, language):
    text = shown("a {{" + "|".join([name, *values]) + "}} b", language)
    assert text.startswith("a")
    assert text.endswith("b")
    assert "{{" not in text


def test_the_last_of_equal_arguments_counts():
    template = mwparserfromhell.parse("{{nowrap|1=a|1=b}}").filter_templates()[0]
    assert render_template(template, str, "en") == "b"


def test_templates_in_templates_end():
    assert shown("{{nowrap|" * 20 + "x" + "}}" * 20 + " y") == "x y"
    assert shown("{{nowrap|" * 200 + "x" + "}}" * 200 + " y").endswith("y")
