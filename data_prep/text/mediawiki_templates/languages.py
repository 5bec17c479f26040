"""What templates show that only the wikis of one language have, or that show other text there.

A row is a rule, in most cases a pattern, and the names of templates that it holds for.
"""

from __future__ import annotations

from data_prep.text.mediawiki_templates import dates, quantities
from data_prep.text.mediawiki_templates.arguments import Rule, joined, table
from data_prep.text.mediawiki_templates.east_asian import CHINESE, JAPANESE, VIETNAMESE
from data_prep.text.mediawiki_templates.romance import FRENCH, ITALIAN, PORTUGUESE, SPANISH
from data_prep.text.mediawiki_templates.table import nihongo

_AMOUNT = joined(" ", 2)

_GERMAN = table(
    ("„{1|Text}“", '"|anführungszeichen'),
    ("{1} m", "höhe"),
    ("{1} €", "eur|euro"),
    ("{1} %", "prozent"),
    (quantities.zahl_exp, "zahlexp"),
    (_AMOUNT, "zahl|einheit|maß"),
    (dates.julian_date, "julgregdatum"),
    (dates.day_first, "datum|geburtsdatum|sterbedatum|date"),
    ("{1}. Jahrhundert", "jahrhundert|jh|jh."),
    ("§ {1}", "§"),
    ("§§ {1}", "§§"),
    ("Art. {1}", "art.|art"),
    ("{1}", "sperrschrift|kapitälchen|iast|arf|arabische schrift|musikzeichen|wortlaut"),
    ("{Text|1}", "zitat inline|zitat-inline"),
    ("\n{1|Text}\n", "zitat-en|zitat-fr|zitat-la|zitat-es|zitat-it"),
    ("v. Chr.", "v. chr.|v.chr.|vchr"),
    ("n. Chr.", "n. chr.|n.chr.|nchr"),
    ("z. B.", "zb|z.b."),
)

_RUSSIAN_AND_UKRAINIAN = (
    (_AMOUNT, "s|число|num|кількість|число2|тонн|nobr2"),
    ("{2|1}", "w|iw|iw2|li|не переведено|не переведено 2|не переведено 3|не переведено 4|"
     "не переведено 5|не перекладено|нп|нп1|нп2|нп3|нп4|нп5|нпє|нетпереклада"),
    ("{1}", "comment|подсказка|ударение|наголос|-1|большая цифра|капитель|разрядка|флагификация|"
     "прапорець|подчёркивание|нет аи 2|уточнить|уточнити|проверить|неоднозначно|переход|"
     "нейтральность|нет в источнике|спорно|значимость факта|достовірність|обосновать|аи|"
     "кто|какой|какая|какие|когда|где|месторождения|місце народження|место рождения|место смерти|"
     "местосмерти|місце смерті|translation|якорь2|lang-hbs|имя|фио"),
    ("\n{1|текст|Цитата|цитата}\n", "цитата|цитата2|начало цитаты|quote|врезка цитата"),
    ("до н. э.", "до н. э.|до н.э.|до нэ"),
    ("до н. е.", "до н. е.|до н.е."),
    ("н. э.", "н. э.|н.э."),
    ("{1} ₽", "руб|рубль|₽"),
    ("ГОСТ {1}", "гост"),
    (nihongo, "нихонго|нихонго2|яп|нихонго3|ніхонго"),
)  # fmt: skip

_RUSSIAN = table(
    (
        dates.day_first,
        "дата|др|дс|дата рождения|дата смерти|датарождения|датасмерти|дата рождения и возраст|"
        "дата смерти и возраст|дата основания|дата события|дата начала|дата создания|дата2",
    ),
    ("{1}", "год|год2|годы"),
    ("<{1:roman} >век", "век|в."),
    ("<{1:roman}—><{2:roman} >века", "века|вв|вв."),
    *_RUSSIAN_AND_UKRAINIAN,
)

_UKRAINIAN = table(
    (dates.day_first, "дата|дн|дс|дата народження|дата смерті|дата народження та вік"),
    ("{1}", "рік"),
    ("<{1:roman} >століття", "століття|ст"),
    *_RUSSIAN_AND_UKRAINIAN,
)


_DUTCH = table(
    (dates.day_first, "datum|geboortedatum|sterfdatum|overlijdensdatum|date"),
    ("{1}e eeuw", "eeuw"),
    (_AMOUNT, "getal|eenheid|aantal"),
    ("v.Chr.", "v.chr.|v. chr.|v.chr"),
    ("n.Chr.", "n.chr.|n. chr."),
    ("€ {1}", "eur|euro|€"),
    ("{1|tekst}", "bron?|feit|bron gevraagd|twijfel|afkorting|kleinkapitaal|verduidelijk|wie|"
     "wanneer|welke|sommige"),
    ("\n{1|tekst|citaat}\n", "citaat|citaat2|quote|cquote"),
)  # fmt: skip

_POLISH = table(
    (dates.day_first, "data|data urodzenia|data śmierci|data urodzenia i wiek|dts|date"),
    ("{1:roman} wiek", "wiek"),
    ("{1:roman} w.", "w."),
    (_AMOUNT, "liczba|jednostka|ilość|wartość"),
    (quantities.convert, "konwersja"),
    ("p.n.e.", "p.n.e.|pne"),
    ("n.e.", "n.e.|ne"),
    ("{tekst|label|1}", "link-interwiki|li"),
    ("{2|1}", "w|język|j"),
    ("{1|tekst|treść}", "fakt|kiedy|kto|który|jaki|gdzie|objaśnienie|skrót|przypis rzeczowy|"
     "kapitaliki|ozdobnik|wytłuszczenie|wikisłownik|dopracować fragment|państwo"),
    ("\n{1|treść|tekst|cytat}\n", "cytat|cytat2|quote|cytatd"),
    (nihongo, "japoński|chiński|koreański"),
)  # fmt: skip

_SWEDISH = table(
    (
        dates.day_first,
        "datum|födelsedatum|dödsdatum|date|dödsdatum och ålder|födelsedatum och ålder",
    ),
    ("{1}-talet", "sekel|århundrade|decennium"),
    (_AMOUNT, "enhet|tal|nummer|antal"),
    ("f.Kr.", "f.kr.|f.kr|fkr"),
    ("e.Kr.", "e.kr.|e.kr|ekr"),
    ("{1|text}", "källa behövs|förtydliga|vem|när|ej källa|kapitäler|intl|faktakoll"),
    ("{2|1}", "w"),
    ("\n{1|text|citat}\n", "citat|citat2|quote"),
)

LANGUAGES: dict[str, dict[str, Rule]] = {
    "de": _GERMAN,
    "es": SPANISH,
    "fr": FRENCH,
    "it": ITALIAN,
    "ja": JAPANESE,
    "nl": _DUTCH,
    "pl": _POLISH,
    "pt": PORTUGUESE,
    "ru": _RUSSIAN,
    "sv": _SWEDISH,
    "uk": _UKRAINIAN,
    "vi": VIETNAMESE,
    "zh": CHINESE,
}
