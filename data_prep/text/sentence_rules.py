"""Rules that correct where sentencex ends sentences, by language.

By itself, sentencex ends a sentence after an ordinal ("im 19. | Jahrhundert") and after many
abbreviations, but not before a number, between quotation marks or after a closing parenthesis. Each
language in ``RULES`` was measured on a treebank (benchmarks.sentence_bounds,
docs/measurements/sentence_splitting.md) or is closely related to one that was. In other languages
nothing is changed.

Time is linear in the length of the text: a rule looks at a few words on either side of a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Callable

RULES_VERSION = 1  # to be raised when a rule changes, so that text is split again

_CURVED_QUOTES = "„“”«»‹›"
_QUOTES = frozenset(f"\"`'{_CURVED_QUOTES}")
_OPENING = _QUOTES | frozenset("([¿¡")
_ENCLOSING = "()[]'’‘-–—•*,"
_LONGEST_QUOTATION = 1000
_CONTEXT = 64  # characters before a bound that the rules look at
_ROMAN = re.compile("[IVXLC]+")
_WORD = re.compile(r"[\W_]{0,20}([^\W_]+)(\.?)")
_ALPHANUMERIC = re.compile(r"\w")
_VOWELS = frozenset("aeiouyáàâäãåąæéèêëęěėēíìîïīıóòôöõőøúùûüűůūýœаеёиоуыэюяіїє")

# These scan whole paragraphs, and begin with a fixed character because re finds such a one fast.
_AFTER_PERIOD = re.compile(r"\.(?: +\(?[0-9]|\) |[ .]\.{0,9} {1,4}I[ '’])")
_AFTER_EXCLAMATION = re.compile(r"!(?: +\(?[0-9]|\) )")
_AFTER_QUESTION = re.compile(r"\?(?: +\(?[0-9]|\) )")

_NUMBER = re.compile(r"([.!?] +\(?)[0-9]")
_PARENTHESIS = re.compile(r"([.!?])\) +(?=\(?\w)")
_ELLIPSIS_AND_I = re.compile(r"\.[ .]\.{0,9} {1,4}(?=I[ '’])")
# Most bounds are between a word and a capital, and need no other rule.
_PLAIN = re.compile(r"(?<=[^\W\d_][^\W\d_A-Z][.!?] )[A-ZÄÖÜÅÆØÉÍÓÚČŠŽŚŁА-Я]")


class Rules:
    """The rules of a language.

    Args:
      abbreviations: in lower case, without their last period. Unless a word of ``starters``
        follows, they end no sentence. sentencex knows others.
      before_numbers: more abbreviations, which end no sentence before a number.
      words: ordinary words that sentencex takes for abbreviations.
      starters: capitalized words that begin a sentence even after an abbreviation or a number.
      before_ordinals: for a language that capitalizes nouns, the words after which a number with a
        period is an ordinal. In other languages, the case of the next word tells.
      years_have_periods: "2014. 5." is a date.
      ordinals_before_names: "II. Rákóczi" is a name.
      knows_initials: sentencex is right about single capital letters with a period.
      allows_lower_case: a sentence may begin with a lower-case letter.
      read_as: the language whose rules sentencex is to apply, if it has none for this one.
    """

    def __init__(
        self,
        *,
        abbreviations: str = "",
        before_numbers: str = "",
        words: str = "",
        starters: str = "",
        before_ordinals: str = "",
        years_have_periods: bool = False,
        ordinals_before_names: bool = False,
        knows_initials: bool = False,
        allows_lower_case: bool = False,
        read_as: str | None = None,
    ):
        self.read_as = read_as
        self._abbreviations = frozenset(abbreviations.split())
        self._before_numbers = self._abbreviations.union(before_numbers.split())
        self._word_periods = _periods_after(words.split()) if words else None
        self._starters = frozenset(starters.split())
        self._before_ordinals = frozenset(before_ordinals.split())
        self._years_have_periods = years_have_periods
        self._ordinals_before_names = ordinals_before_names
        self._knows_initials = knows_initials
        self._allows_lower_case = allows_lower_case
        self._is_plain = self._is_plain_word if abbreviations else _PLAIN.match

    def starts(self, text: str, find: Callable[[str], list[int]]) -> list[int]:
        """The positions at which the sentences of a paragraph begin, except for the first.

        Args:
          text: the paragraph.
          find: finds these positions by sentencex. It gets a text of the same length, in which
            quotation marks are blanks (sentencex ends no sentence between them), a number that may
            begin a sentence starts with a letter, and an ordinary word that it takes for an
            abbreviation is followed by an exclamation mark.
        """
        shown = _without_quotes(text)
        if self._word_periods:
            shown = self._word_periods.sub("!", shown)
        if (
            _AFTER_PERIOD.search(shown)
            or _AFTER_EXCLAMATION.search(shown)
            or _AFTER_QUESTION.search(shown)
        ):
            found = sorted({*find(_NUMBER.sub(r"\1É", shown)), *self._missed(shown)})
        else:
            found = find(shown)
        kept, begun, is_plain = [], 0, self._is_plain
        for start, end in zip(found, [*found[1:], len(text)]):
            if not is_plain(text, start):
                start = _before_quotes(text, begun, start)
                if not self._is_start(text, shown, begun, start, end):
                    continue
            kept.append(start)
            begun = start
        return kept

    def _is_plain_word(self, text: str, start: int) -> bool:
        if not _PLAIN.match(text, start):
            return False
        word = text[text.rfind(" ", 0, start - 1) + 1 : start - 2]
        return word.lower() not in self._abbreviations

    def _missed(self, shown: str) -> Iterator[int]:
        """Starts that sentencex never finds: after "(Laughter.)", and of "I" after an ellipsis."""
        for match in _PARENTHESIS.finditer(shown):
            following = _WORD.match(shown, match.end())
            if following is None or following[1][0].islower():
                continue
            context = shown[max(0, match.start() - _CONTEXT) : match.start()]
            word = context.rpartition(" ")[2]
            is_abbreviation = len(word) <= 3 or not (word.islower() or word[0] == "(")
            if match[1] != "." or not is_abbreviation:
                yield match.end()
        if self._allows_lower_case:
            for match in _ELLIPSIS_AND_I.finditer(shown):
                yield match.end()

    def _is_start(self, text: str, shown: str, begun: int, start: int, end: int) -> bool:
        """Whether the sentence that began at ``begun`` ends before ``start``."""
        following = _WORD.match(text, start)
        if following is None or following.start(1) >= end:
            return False  # no word is left for a sentence
        before = shown[max(begun, start - _CONTEXT) : start].rstrip(_ENCLOSING + " ")
        if not _ALPHANUMERIC.search(before):
            return False
        word, period = following.groups()
        if word[0].islower() and not (
            self._allows_lower_case and text[start - 2 : start - 1] not in _QUOTES
        ):
            return False
        if text[start - 1] != " ":
            if text[start] != word[0] and text[start] not in _OPENING:
                return False
            if period and len(word) == 1 and text[start - 2 : start - 1].isupper():
                return False  # initials, as in "B.T."
        is_whole = begun >= start - _CONTEXT
        return not before.endswith(".") or self._ends_sentence(before, word, is_whole)

    def _ends_sentence(self, before: str, word: str, is_whole: bool) -> bool:
        """Whether a period ends a sentence.

        Args:
          before: what precedes it, and the period.
          word: the next word.
          is_whole: whether ``before`` is the whole sentence.
        """
        earlier, _, last = before.rpartition(" ")
        last = last.strip(_ENCLOSING).rpartition("-")[2].rstrip(".")
        previous = earlier.rpartition(" ")[2].rstrip(".")
        is_number = word[0].isdigit()
        is_starter = word in self._starters
        if last.isdigit() or _ROMAN.fullmatch(last):
            if previous.endswith(":") or (is_whole and not _ALPHANUMERIC.search(earlier)):
                return False  # the number of an item: "1. The first"
            is_year = last.isdigit() and len(last) == 4
            if is_number:
                return is_year and not self._years_have_periods
            if self._before_ordinals:
                return previous.lower() not in self._before_ordinals and (is_starter or is_year)
            return last.isdigit() or not self._ordinals_before_names
        abbreviation = last.lower()
        if is_number and last[-1:].isalpha():
            return not (
                len(last) == 1
                or abbreviation in self._before_numbers
                or _VOWELS.isdisjoint(abbreviation)
            )
        if is_starter:
            return True
        if len(last) == 1 and last.isupper() and not self._knows_initials:
            return False
        return abbreviation not in self._abbreviations


def _without_quotes(text: str) -> str:
    """The text with blanks in place of quotation marks."""
    if '"' in text:
        text = text.replace('"', " ")
    if "`" in text:
        text = text.replace("``", "  ").replace("''", "  ")
    if not text.isascii():
        for mark in _CURVED_QUOTES:
            text = text.replace(mark, " ")
    return text


def _periods_after(words: Sequence[str]) -> re.Pattern[str]:
    """Matches the periods after these words, unless a number follows."""
    behind = "|".join(rf"(?<=[ (]{re.escape(word)}\.)" for word in words)
    return re.compile(rf"\.(?= +[^\s\d])(?:{behind})")


def _before_quotes(text: str, begun: int, start: int) -> int:
    """Moves the start of a sentence before the quotation marks that open it."""
    while text[start - 1] in _QUOTES and start - 1 > begun:
        start -= 1
    mark = text[start - 2]
    if start - 2 > begun and mark in _QUOTES and text[start - 3 : start] == f" {mark} ":
        inside = text[max(begun, start - _LONGEST_QUOTATION) : start - 1]
        if mark in "«„" or (mark in '"“' and inside.count(mark) % 2 and "„" not in inside):
            return start - 2
    return start


_NORDIC: dict[str, Any] = {
    "abbreviations": "adm bl.a ca cand dr eks evt f.eks fr frk gt hr ing jf jr kgl kl mag mr mrs "
    "ms nr o.a phil pkt prof sr sst st stk str tlf",
    "before_numbers": "apr art aug avd bd dec del des feb fig jan kap mar nov okt par sept side "
    "vol",
    "words": "al av da del din form ill ind jul litt ma mat med nat ned nord pass port rest sa sen "
    "sort ti til to tv var vær",
}
RULES = {
    "de": Rules(
        abbreviations="abb abschn abt altgr anm aufl ausg bd bde bearb begr bsp dt ebd ehem eig "
        "engl erg erw evang ehm fam fig finn frhr frz gebr geb gegr gest griech hg hll hrsg inh "
        "ital jg kap kl lat lfd mhd ndl nrn österr poln port prot röm rum russ schwed schweiz span "
        "tab taf tschech türk ung urspr verh zit zool",
        before_numbers="abs art az apr aug dez feb febr fol folg jan jh jul jun kat kfz nov nr okt "
        "pos rdnr reg sept sp std str tel teil ver vers zif ziff",
        starters="Aber Alle Allerdings Als Also Am An Andere Anders Anfang Anschließend Auch Auf "
        "Aufgrund Aus Außerdem Bei Beide Beim Bereits Bis Bisher Da Dabei Dadurch Dafür Dagegen "
        "Daher Damals Damit Danach Daneben Dank Dann Daran Darauf Daraufhin Daraus Darin Darüber "
        "Darum Darunter Das Dass Davon Davor Dazu Dem Den Denn Dennoch Der Deren Derzeit Des "
        "Deshalb Dessen Deswegen Die Dies Diese Diesem Diesen Dieser Dieses Doch Dort Durch "
        "Ebenfalls Ebenso Ein Eine Einem Einen Einer Eines Einige Er Erst Es Etwa Für Ganz Gegen "
        "Gemeinsam Gleichzeitig Hat Hier Hierbei Hierfür Hierzu Hinzu Ich Ihm Ihn Ihnen Ihr Ihre "
        "Ihrem Ihren Ihrer Im Immer In Infolge Insgesamt Ist Ja Jede Jeder Jedes Jedoch Kein Keine "
        "Laut Man Manche Mehr Mehrere Mit Mittlerweile Nach Nachdem Neben Nein Nicht Nichts Noch "
        "Nun Nur Ob Obwohl Oder Ohne Schließlich Schon Sehr Sein Seine Seinem Seinen Seiner Seit "
        "Seitdem Selbst Sie Sind So Sobald Sogar Somit Sonst Sowohl Später Trotz Trotzdem Um Und "
        "Unser Unsere Unter Ursprünglich Viele Vom Von Vor Während War Waren Warum Was Wegen Weil "
        "Weiter Weitere Weiterhin Welche Wenn Wer Wie Wir Wird Wo Wobei Zu Zudem Zuerst Zum "
        "Zunächst Zur Zusammen Zwar Zwischen Über",
        before_ordinals="am an ans beim das dem den der des die diese diesem diesen dieser "
        "dieses ein eine einem einen einer eines ihr ihre ihrem ihren ihrer im ins jede jedem "
        "jeden jeder jedes sein seine seinem seinen seiner vom zum zur",
    ),
    "en": Rules(
        before_numbers="chs eqs figs nos secs vols",
        knows_initials=True,
        allows_lower_case=True,
    ),
    "da": Rules(**_NORDIC),
    **dict.fromkeys(("nb", "nn", "no"), Rules(**_NORDIC, read_as="da")),
    "sv": Rules(
        abbreviations="bl.a dr f.d kl kr mr mrs nr prof s.k st t.ex",
        before_numbers="art kap s sid vol",
    ),
    "pl": Rules(
        abbreviations="abp al art asp bp bł dr ds gen godz hab im insp inż kard kom kpr kpt ks lic "
        "m.in mgr mjr mł nadkom np nr o ok os paraf pkt pl por poz ppłk prof pt płk rys st str tab "
        "tj tzw ul ust zob św",
        before_numbers="cz lit par r rozdz t tel",
    ),
    "sl": Rules(
        abbreviations="akad dr doc g ga gl inž mag npr oz prof st sv",
        before_numbers="ok str tel čl št",
    ),
    "hu": Rules(years_have_periods=True, ordinals_before_names=True),
    "cs": Rules(knows_initials=True),
    "fr": Rules(
        abbreviations="dr drs mgr mm ms pr prof st ste",
        before_numbers="art fig n no p pp vol",
    ),
    "es": Rules(
        abbreviations="av bros dr dra gral prof sr sra st v vs",
        before_numbers="art fig núm pág",
    ),
    "nl": Rules(abbreviations="d.w.z dhr m.b.v mevr o.a st"),
    **dict.fromkeys(
        ("bs", "et", "fi", "hr", "is", "it", "lt", "lv", "pt", "ru", "sh", "sk", "sr"), Rules()
    ),
}


def rules_for(language: str) -> Rules | None:
    """The rules of a language or, for a code such as de-at, of the language it is a variety of."""
    return RULES.get(language) or RULES.get(language.partition("-")[0])
