"""What templates show: those that all wikis have in common, most of them from the English one."""

from __future__ import annotations

import re

from data_prep.text.mediawiki_templates import dates, quantities
from data_prep.text.mediawiki_templates.arguments import (
    APOSTROPHE,
    Arguments,
    Rule,
    joined,
    last,
    nothing,
    pattern,
    table,
)


def nihongo(arguments: Arguments) -> str:
    """{{nihongo|English|kanji|rōmaji|more}}: English (kanji, rōmaji, more)."""
    english, *japanese = (arguments(name) for name in "1234")
    inside = ", ".join(filter(None, japanese))
    return f"{english} ({inside})" if english and inside else english or inside


def _phonetic(arguments: Arguments) -> str:
    """A sound that the text speaks of, {{IPA|/a/}}; not the pronunciation of a word."""
    sound = arguments("1")
    return sound if sound.startswith(("/", "[")) else ""


def _chinese(arguments: Arguments) -> str:
    names = ("c", "t", "s", "p", "w", "j", "poj")
    return "; ".join(filter(None, map(arguments, names))) or joined("; ")(arguments)


def _accidental(arguments: Arguments) -> str:
    return {"flat": "♭", "sharp": "♯", "natural": "♮"}.get(arguments("1"), "")


_SHIPS = ("HMS", "HMAS", "HMCS", "MS", "MV", "RMS", "SMS", "SS", "USCGC", "USS")

# A template's name in lower case -> the rule for its text.
COMMON: dict[str, Rule] = table(
    # What a reader sees nothing of
    (
        nothing,
        "anchor|anchors|ancre|ancla|âncora|ancora|anker|ankare|kotwica|якорь|якір|clear|clr|-|"
        "clear left|clear right|--clear|noteta|notetat|short description|use dmy dates|"
        "use mdy dates|use british english|use american english|good article|"
        "featured article|coord missing|defaultsort|displaytitle|sortierung|ordenar|ordina",
    ),
    # Dashes, blanks and marks
    ("–", "ndash|en dash|endash|en-dash|--"),
    ("—", "mdash|em dash|emdash|em-dash|---|mdashb|mdash-"),
    (" – ", "snd|spnd|sndash|spndash|spaced ndash|spaced en dash|dash|ndash-|spaced-ndash"),
    (" — ", "smd|spmd|mdsp|spaced mdash|spaced em dash"),
    (
        " ",
        "nbsp|nbs|nnbsp|space|spaces|sp|thinsp|thin space|hairsp|hair space|ensp|en space|emsp|"
        "em space|figure space|narrow no-break space|pad|gap|quad|0",
    ),
    ("\n", "br|break|crlf|pb|paragraph break|parabr"),
    (" · ", "·|dot|middot|•|bullet"),
    (" / ", "\\|slash"),
    ("=", "="),
    ("|", "!"),
    (APOSTROPHE, "'|-'|apostrophe"),
    (f"{APOSTROPHE}s", "'s"),
    (f'{APOSTROPHE} "', "' \"|'\""),
    (f'" {APOSTROPHE}', "\" '|\"'"),
    ('"', '-"'),
    ("″", "pprime"),
    ("′", "prime"),
    ("×", "times"),
    ("[sic]", "sic!"),
    # Text in another form
    (
        "{1}",
        "nowrap|nobr|nwr|no wrap|small|smaller|big|larger|large|resize|nobold|noitalic|bold|"
        "italic|em|strong|strongbad|sc|smallcaps|allcaps|caps|aut|var|mvar|math|bigmath|mono|"
        "monospace|tt|kbd|samp|code|unicode|polytonic|polytonisch|vr|abbr|abbrv|tooltip|tooltip2|"
        "hover title|nastaliq|nq|hebrew|hebr|rtl|ltr|vanchor|visible anchor|underline|"
        "overline|uline|strikethrough|not a typo|as written|typo|proper name|flag|flagcountry|"
        "flagu|flag+link|by|dts|number|nts|formatnum|formatzahllokal|format price|"
        "highlight|iast|native name inline|cjkv|midsize|normal|lc|uc|lcfirst|ucfirst",
    ),
    ("{text|1}", "citation needed span|cn-span|fact span|clarify span|disputed span"),
    (
        "{label|lt|text|display|1}",
        "ill|ill2|interlanguage link|illm|interlanguage link multi|link-interwiki|iw",
    ),
    ("{2|text|texte|texto|testo|текст|1}", "color|font color|colour|audio|legend2|wikt-lang"),
    ("{2|text|texte|texto|testo|текст}", "lang|langue|langx|lang-unicode"),
    (last, "transl|transliteration|translit|script|rtl-lang|sort"),
    (joined(" "), "gaps"),
    (joined(" ", 2), "sortname|bibleref|bibleref2|ship"),
    (joined(" ", 3), "bibleverse"),
    (joined(""), "sic|linktext"),
    (_phonetic, "ipa"),
    ("/{1}/", "ipaslink"),
    ("[{1}]", "ipablink"),
    ("⟨{1}⟩", "angbr|angle bracket|angbr ipa|grapheme"),
    ('"{1}"', '"|quote inline|qi'),
    ("\n{1|text|quote|Text}\n", "quote|blockquote|cquote|quotation|zitat|bquote|quote box"),
    ("{hangul|1}< ({hanja|2})>", "korean"),
    # Quantities
    (quantities.convert, "convert"),
    (quantities.cvt, "cvt|cv"),
    (quantities.val, "val"),
    (quantities.power_of_ten, "e"),
    ("10{1:super}", "10^"),
    (quantities.fraction, "frac|fraction|sfrac|bruch"),
    ("{1:super}", "sup"),
    ("{1:sub}", "sub"),
    (quantities.chemical_formula, "chem|chem/link"),
    (quantities.chemical_equation, "chem2"),
    (_accidental, "music"),
    (quantities.track_gauge, "railgauge|track gauge"),
    ("${1}", "usd|us$|$"),
    ("£{1}", "gbp|£|pound sterling"),
    ("€{1}", "€|euro"),
    ("₹{1}", "inr|₹|indian rupee"),
    ("¥{1}", "jpy|¥"),
    # Dates
    (dates.as_of, "as of|asof"),
    (
        dates.year_first,
        "birth date|birth date and age|birth-date|dob|bda|death date|death date and age|dda|"
        "start date|start date and age|end date|end date and age|birth year and age|film date|"
        "release date|launch date and age",
    ),
    ("{1}", "date"),
    (dates.approximate, "circa|c.|ca."),
    ("fl.< {1}>", "floruit|fl."),
    (dates.reign, "reign|r.|reigned"),
    (dates.old_style_date, "oldstyledate|old style date"),
    # Names and other scripts
    (nihongo, "nihongo|nihongo2|nihongo3|nihongo foot"),
    (_chinese, "zh|zh-full|chinese|lang-zh|cjkv"),
    *((f"{prefix} {{1}}", prefix.lower()) for prefix in _SHIPS),
)

# Families of names, of one language or of all: {{lang-ru|...}}, in German {{ruS|...}}.
FAMILIES: tuple[tuple[str, re.Pattern[str], Rule], ...] = (
    ("", re.compile(r"[Ll]ang-[A-Za-z-]+"), pattern("{1|text}")),
    ("", re.compile(r"[Ss]cript/[A-Za-z]+"), pattern("{1}")),
    ("de", re.compile(r"[A-Za-z][a-z]{1,2}S"), joined(", ")),
    # {{XXe siècle}}, {{IIIe République}}, {{2e|régiment}}, {{1er janvier}}, {{Louis XIV}}
    (
        "fr",
        re.compile(r"(?:\d+|[IVX][IVXLC]*|[LCDM][IVXLCDM]+)(?:er|re|e|nd|nde|d|de|ème)(?: .+)?"),
        pattern("{0}< {1}>"),
    ),
    ("fr", re.compile(r"[A-ZÉ][\w'’-]+ (?:[IVXL]{1,6}|Ier|Ire)"), pattern("{0}")),
    # {{ang.|river}}
    ("pl", re.compile(r"[A-Za-złśń]{1,6}\."), pattern("{1}")),
    # {{link-en|河流|river}}
    ("zh", re.compile(r"(?:[Ll]ink-|[Ll]an-|[Ii]nternal link helper/)[a-z-]+"), pattern("{3|1}")),
)
