"""Templates that are part of a sentence, against what the wikis show in their place."""

from __future__ import annotations

from collections import Counter

import mwparserfromhell
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.text.mediawiki_templates import languages, table
from data_prep.text.mediawiki_templates.numerals import subscript, superscript
from data_prep.text.mediawiki_templates.render import render_template
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


# Sentences with the templates that articles of a wiki have, and what its readers see.
SENTENCES = [
    ("fr", "née le {{Date de naissance|11|novembre|1866}} à Moulins, morte le {{date|1|5|1936}}",
     "née le 11 novembre 1866 à Moulins, morte le 1er mai 1936"),
    ("fr", "le {{date|3 mars 1802}}, le {{date|1 mars 1802}}, en {{date||mars|1802}}",
     "le 3 mars 1802, le 1er mars 1802, en mars 1802"),
    ("fr", "le {{1er janvier}} 1810, le {{2e|régiment}}, la {{IIIe République}}",
     "le 1er janvier 1810, le 2e régiment, la IIIe République"),
    ("fr", "au {{XXe siècle}}, au {{s|XVIII}}, au {{siècle|19}}, au {{-s|III}}, aux {{s2|XI|XII}}",
     "au XXe siècle, au XVIIIe siècle, au XIXe siècle, au IIIe siècle av. J.-C., "
     "aux XIe et XIIe siècles"),
    ("fr", "aux {{sp|XVI|e|et|XVII|e|s}} et aux {{sp|XVI|e|XVII|e|s}}, en 52 {{av JC}}",
     "aux XVIe et XVIIe siècles et aux XVIe-XVIIe siècles, en 52 av. J.-C."),
    ("fr", "{{unité|12,5|km}}, {{unité|6|e=5|m}}, {{nombre|3000|habitants}}, {{x10|6}}",
     "12,5 km, 6×10⁵ m, 3000 habitants, ×10⁶"),
    ("fr", "à {{heure|8|30}}, le {{n°|5}}, {{p.|12}}, {{M.|Durand}} et {{Mme|Durand}}",
     "à 8 h 30, le n° 5, p. 12, M. Durand et Mme Durand"),
    ("fr", "sous {{Louis XIV}} et {{souverain|Charles|X}}, pape {{nobr romains|Pie VII}}",
     "sous Louis XIV et Charles X, pape Pie VII"),
    ("fr", "L'{{japonais|'''aïkido'''|合気道|aikidō}}, {{lang|en|river}}, {{langue|en|texte=sea}}",
     "L'aïkido (合気道, aikidō), river, sea"),
    ("fr", "{{lien|trad=Stone|fr=rivière de pierre}} {{refnec|Elle y vit.}} {{citation|Oui}}",
     "rivière de pierre Elle y vit. « Oui »"),
    ("de", "am {{Datum|11|3|1866}}, im {{Jahrhundert|19}}, {{Zahl|1200|Einwohner}}, {{Prozent|5}}",
     "am 11. März 1866, im 19. Jahrhundert, 1200 Einwohner, 5 %"),
    ("de", "({{enS|Stone River}}; {{lang|fr|rivière}}), {{convert|1300|m|ft}}, {{nowrap|3 km}}",
     "(Stone River; rivière), 1.300 m, 3 km"),
    ("es", "nació el {{fecha|11|11|1866}}, murió el {{Fecha de fallecimiento|21|9|1936|1|1|1866}}",
     "nació el 11 de noviembre de 1866, murió el 21 de septiembre de 1936"),
    ("es", "del {{siglo|XIX||s}} y del {{siglo|I|a|s}}, siglo {{siglo|V}}; {{unidad|12|km}}",
     "del siglo XIX y del siglo I a. C., siglo V; 12 km"),
    ("es", "52 {{AC}}, {{esd|12 km}}, {{cita requerida|Vive allí.}} {{convertir|5|km|mi}}",
     "52 a. C., 12 km, Vive allí. 5 km"),
    ("pt", "a {{dtlink|11|11|1866}}, {{dni|1|2|1950}}, no {{século|XX}}, {{fmtn|12345|km}}",
     "a 11 de novembro de 1866, 1 de fevereiro de 1950, no século XX, 12345 km"),
    ("pt", "{{PBPE|trem|comboio}} e {{ilc|rio de pedra|en|stone river}}",
     "trem (português brasileiro) ou comboio (português europeu) e rio de pedra"),
    ("it", "il {{data|11|11|1866}}, nel {{secolo|XX}}, {{M|12,5|ul=km}}, {{TA|10 kg}}",
     "il 11 novembre 1866, nel XX secolo, 12,5 km, 10 kg"),
    ("it", "{{senza fonte|Vive lì.}} {{citazione necessaria|Forse.}} {{lang|en|river}}",
     "Vive lì. Forse. river"),
    ("nl", "op {{datum|11|11|1866}}, in de {{eeuw|20}}, {{Bron?|Hij woont er.}} {{getal|5|km}}",
     "op 11 november 1866, in de 20e eeuw, Hij woont er. 5 km"),
    ("sv", "den {{datum|11|11|1866}}, {{källa behövs|han bor där}}, {{enhet|1|km}}, {{sekel|1800}}",
     "den 11 november 1866, han bor där, 1 km, 1800-talet"),
    ("pl", "({{ang.|Stone River}}), {{data|11|11|1866}}, {{wiek|20}}, {{fakt|Mieszka tam.}}",
     "(Stone River), 11 listopada 1866, XX wiek, Mieszka tam."),
    ("ru", "({{lang-en|Stone}}; {{ДР|3|3|1902}}—{{ДатаСмерти|5|5|1980|3|3|1902}})",
     "(Stone; 3 марта 1902—5 мая 1980)"),
    ("ru", "в {{год|1902}} году, {{век|19}}, XIX {{век}}, {{s|12|км}}, {{число|5}} {{до н. э.}}",
     "в 1902 году, XIX век, XIX век, 12 км, 5 до н. э."),
    ("ru", "{{Нп5|Река|реки|en|River}}, {{не переведено|Озеро||en|Lake}}, {{нет АИ 2|он там|2010}}",
     "реки, Озеро, он там"),
    ("ru", "{{OldStyleDate|22 апреля|1870|10}} и {{OldStyleDate|9 февраля|1881|28 января}}",
     "10 (22) апреля 1870 и 28 января (9 февраля) 1881"),
    ("uk", "{{ДН|3|3|1902}}, {{нп|Ріка|ріки|en|River}}, {{століття|20}}",
     "3 березня 1902, ріки, XX століття"),
    ("ja", "{{生年月日と年齢|1980|1|2}}生まれ、{{没年齢|1900|1|2|1980|3|4}}没",
     "1980年1月2日生まれ、1980年3月4日没"),
    ("ja", "{{読み仮名|'''河'''|かわ}}と{{ruby|石|いし}}と{{JIS2004フォント|葛}}",
     "河（かわ）と石（いし）と葛"),
    ("ja", "{{仮リンク|河川|en|river|label=川}}と{{仮リンク|海|en|sea}}", "川と海"),
    ("ja", "{{要出典範囲|彼は住む。|date=2010}}{{convert|1200|km|mi}}、{{lang-en-short|Stone}}",
     "彼は住む。1,200 km、Stone"),
    ("zh", "某人{{bd|1900年|1月2日|1980年|3月4日}}，{{出生日期|1900|1|2}}，{{僻字|𠮷|吉}}",
     "某人（1900年1月2日－1980年3月4日），1900年1月2日，𠮷"),
    ("zh", "{{link-en|河流|river}}、{{le|石头|stone|石}}、{{tsl|en|sea|海}}{{noteTA|T=zh:x}}",
     "河流、石、海"),
    ("vi", "{{ngày sinh|1900|1|2}}, {{thế kỷ|20}}", "ngày 2 tháng 1 năm 1900, thế kỷ 20"),
]  # fmt: skip


@pytest.mark.parametrize(("language", "markup", "text"), SENTENCES)
def test_sentences_of_the_largest_wikis(language, markup, text):
    left_out = Counter()
    options = Options(frozenset(), language=language)
    assert "|".join(plain_text(markup, options, left_out)) == text
    assert not left_out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("Nome=Anna|Cognome=Rossi|Sesso=F|LuogoNascita=Roma|GiornoMeseNascita=3 marzo|"
         "AnnoNascita=1902|LuogoMorte=Milano|GiornoMeseMorte=5 maggio|AnnoMorte=1980|"
         "Attività=attrice|Attività2=pittrice|Nazionalità=italiano|PostNazionalità=, nota a Parigi",
         "Anna Rossi (Roma, 3 marzo 1902 – Milano, 5 maggio 1980) è stata un'attrice e pittrice "
         "italiana, nota a Parigi."),
        ("Nome=Jan|Cognome=Vos|Sesso=M|AnnoNascita=1990|Attività=scultore|Nazionalità=belga",
         "Jan Vos (1990) è uno scultore belga."),
        ("Nome=Jan|Cognome=Vos|Sesso=M|FineIncipit=è il nome di due fratelli",
         "Jan Vos è il nome di due fratelli."),
        ("Sesso=M", ""),
    ],
)  # fmt: skip
def test_italian_lives_begin_with_their_first_sentence(arguments, text):
    assert shown("{{Bio|" + arguments + "}}", "it") == text


def test_what_is_left_out_is_counted_by_name():
    left_out = Counter()
    markup = (
        "a {{coord|1|N}} b {{Coord|2}} {{citation_needed}} {{nowrap|{{x|1}} c}} {{#if: a|b}} "
        "{{DEFAULTSORT:A}} {{clear}} {{PAGENAME}} {{convert|km}} {{formatnum:{{pop|x}}}} "
        "<ref>{{cite web}}</ref>\n{| class=x\n| {{in a table}}\n|}\n"
    )
    plain_text(markup, Options(frozenset(), language="en"), left_out)
    assert left_out == {
        **{"Coord": 2, "Citation needed": 1, "X": 1, "#if": 1, "PAGENAME": 1, "Convert": 1},
        "Pop": 1,
    }


def test_names_that_are_counted_have_a_length():
    left_out = Counter()
    plain_text("a {{" + "x" * 5000 + "}} b", Options(frozenset()), left_out)
    assert [len(name) for name in left_out] == [80]


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
    *table.COMMON,
    *(name for rules in languages.LANGUAGES.values() for name in rules),
    *("lang-de", "enS", "formatnum:5", "unknown"),
})  # fmt: skip
VALUES = [
    *("", " ", "0", "1", "-27", "2014", "13", "1.5e3", "km", "ft", "to", "-", "text", "e=6"),
    *("df=y", "adj=on", "abbr=on", "sp=us", "alt=x", "1=y", "''n''", "[[a|b]]", "{{val|1}}"),
]


@given(
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(VALUES), max_size=6),
    st.sampled_from(["", *languages.LANGUAGES]),
)
@settings(max_examples=500, deadline=None)
def test_any_arguments(name, values, language):
    text = shown("a {{" + "|".join([name, *values]) + "}} b", language)
    assert text.startswith("a")
    assert text.endswith("b")
    assert "{{" not in text


def test_the_last_of_equal_arguments_counts():
    template = mwparserfromhell.parse("{{nowrap|1=a|1=b}}").filter_templates()[0]
    assert render_template(template, str, "en", Counter()) == "b"


def test_templates_in_templates_end():
    assert shown("{{nowrap|" * 20 + "x" + "}}" * 20 + " y") == "x y"
    assert shown("{{nowrap|" * 200 + "x" + "}}" * 200 + " y").endswith("y")
