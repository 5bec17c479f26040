"""Questions about a documented object, each with its answer as a span of the context.

Every template is a pattern that finds a statement in the documentation (a default, a type, an
exception, a version ...) and ways to ask for it. Nothing is inferred: an answer is literal text
from the place in the context where documentation states such things.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator

from tools.demo.documented_objects import DocumentedObject, Span

MAX_ANSWER_WORDS = 15  # counted in subwords, about half of run_squad.py's --max_answer_length

_SENTENCE = r"(?P<answer>[^\n]+?)(?=(?<!e\.g)(?<!i\.e)(?<!etc)[.;](?:\s|\Z)|\n|\Z)"
_OPENING, _CLOSING = "([{", ")]}"


@dataclasses.dataclass(frozen=True)
class Template:
    """A kind of question.

    Attributes:
      kind: its name, for the counts in the manifest.
      section: the section of the context in which the pattern is tried, or None for all of it.
      pattern: a pattern with a group ``answer``, and ``subject`` if the questions have one.
      questions: alternative phrasings, with ``{name}`` of the object and ``{subject}``.
      mentioned: a pattern that matches every context that may contain an answer; ``{subject}``
        stands for the question's subject. None if every context has an answer.
    """

    kind: str
    section: str | None
    pattern: re.Pattern[str]
    questions: tuple[str, ...]
    mentioned: str | None = r"\b{subject}\b"


@dataclasses.dataclass(frozen=True)
class Statement:
    """A template's match: ``context[answer.start : answer.end]`` answers the question."""

    template: Template
    subject: str
    answer: Span

    def question(self, name: str, *, phrasing: int) -> str:
        """The question about the object ``name``; ``phrasing`` selects one of the phrasings."""
        questions = self.template.questions
        return questions[phrasing % len(questions)].format(name=name, subject=self.subject)

    def is_mentioned(self, context: str) -> bool:
        """Whether a context may contain an answer to the question."""
        mentioned = self.template.mentioned
        if mentioned is None:
            return True
        pattern = mentioned.replace("{subject}", re.escape(self.subject))
        return re.search(pattern, context, re.IGNORECASE) is not None


def _template(
    kind: str,
    section: str | None,
    pattern: str,
    *questions: str,
    mentioned: str | None = r"\b{subject}\b",
) -> Template:
    return Template(kind, section, re.compile(pattern, re.MULTILINE), questions, mentioned)


_MEANING = ("What is the parameter {subject} of {name}?", "What does {subject} of {name} mean?")
_TYPE = (
    "What type is the parameter {subject} of {name}?",
    "Which type does {subject} of {name} have?",
)
_DEFAULT = (
    "What is the default of {subject} in {name}?",
    "Which value does {subject} of {name} have by default?",
)
_RETURNS = ("What does {name} return?", "What is the result of {name}?")
_RAISES = ("Which exception does {name} raise {subject}?",)
_CONDITION = ("When does {name} raise {subject}?", "Why would {name} raise {subject}?")
_SPEAKS_OF_RESULTS = r"return|yield|->"
_SPEAKS_OF_ERRORS = r"rais|error|exception|throw"
_SPEAKS_OF_VERSIONS = r"version|since|deprecat|\badded\b"
_IF = r"(?:[Ii]f|[Ww]hen|[Ww]henever)\b"
_EXCEPTION = r"[\w.]*(?:Error|Exception|Warning|Interrupt)"
_VALUE = r"(?P<answer>-?[\w.]*\w|'[^'\n]*'|\"[^\"\n]*\")"

TEMPLATES = (
    _template(
        "purpose of a class",
        None,
        rf"\Aclass [^\n]*\n{_SENTENCE}",
        "What is {name}?",
        "What is the class {name} for?",
        mentioned=None,
    ),
    _template(
        "purpose of a function",
        None,
        rf"\A(?!class )[^\n]*\n(?!Returns?\b|:|\w+ ?(?:\([^\n]*\))?:){_SENTENCE}",
        "What does {name} do?",
        "What is {name} for?",
        mentioned=None,
    ),
    _template(
        "base class",
        None,
        r"\Aclass [\w.]+\((?P<answer>[\w.]+)\)$",
        "Which class does {name} extend?",
        "What is the base class of {name}?",
        mentioned=r"\Aclass [^\n]*\(|subclass|base class|inherit|extend|deriv",
    ),
    _template(
        "returns",
        None,
        rf"\A[^\n]*\nReturns? (?:the value of )?{_SENTENCE}",
        *_RETURNS,
        mentioned=_SPEAKS_OF_RESULTS,
    ),
    _template(
        "returns",
        "returns",
        rf"\A(?:[^\n:]+ : [^\n]*\n|[\w.]+(?:\[[^\]\n]*\])?: )?(?![^\n]*:\s){_SENTENCE}",
        *_RETURNS,
        mentioned=_SPEAKS_OF_RESULTS,
    ),
    _template(
        "returns", None, rf"^:returns?: {_SENTENCE}", *_RETURNS, mentioned=_SPEAKS_OF_RESULTS
    ),
    _template(
        "type of the result",
        "returns",
        r"\A\w+ : (?P<answer>[^\n:]+)$",
        "What type does {name} return?",
        "Which type does the result of {name} have?",
        mentioned=_SPEAKS_OF_RESULTS,
    ),
    _template(
        "type of a parameter",
        "arguments",
        r"^(?P<subject>\w+) : (?P<answer>[^\n]+?)(?:,? \(?optional\)?|,? default[^\n]*)?$",
        *_TYPE,
    ),
    _template(
        "type of a parameter",
        "arguments",
        r"^(?P<subject>\w+) \((?P<answer>[^()\n]+?)(?:, \*?optional\*?|, defaults[^\n)]*)*\):",
        *_TYPE,
    ),
    _template("type of a parameter", None, r"^:type (?P<subject>\w+): (?P<answer>[^\n]+)$", *_TYPE),
    _template(
        "meaning of a parameter",
        "arguments",
        rf"^(?P<subject>\w+)(?: \([^()\n]*\))?: (?:Optional[.,:] )?{_SENTENCE}",
        *_MEANING,
    ),
    _template(
        "meaning of a parameter",
        "arguments",
        rf"^(?P<subject>\w+) : [^\n]+\n(?!\w+ : ){_SENTENCE}",
        *_MEANING,
    ),
    _template(
        "meaning of a parameter",
        None,
        rf"^:param (?:\S+ )?(?P<subject>\w+): {_SENTENCE}",
        *_MEANING,
    ),
    _template(
        "default of a parameter",
        None,
        rf"(?<=[(,] )?\b(?P<subject>\w+)(?:: [\w.\[\]]+)?=(?!None\b){_VALUE}(?=, |\)(?: ->|$))",
        *_DEFAULT,
    ),
    _template(
        "default of a parameter",
        "arguments",
        r"^(?P<subject>\w+)(?: \(| : |: )[^\n]*?\b[Dd]efault(?:s to|s is| is| value is|:|=)"
        rf" ?(?!None\b){_VALUE}(?=[\s.,;)]|$)",
        *_DEFAULT,
    ),
    _template(
        "exception",
        "raises",
        rf"^(?P<answer>{_EXCEPTION}):? (?P<subject>{_IF}[^\n.]+?)\.?$",
        *_RAISES,
        mentioned=_SPEAKS_OF_ERRORS,
    ),
    _template(
        "exception",
        None,
        rf"^:raises? (?P<answer>{_EXCEPTION}): (?P<subject>{_IF}[^\n.]+?)\.?$",
        *_RAISES,
        mentioned=_SPEAKS_OF_ERRORS,
    ),
    _template(
        "exception",
        None,
        rf"\b[Rr]aises? (?:an? )?(?P<answer>{_EXCEPTION}) "
        rf"(?P<subject>{_IF}[^\n.,;]+)(?=[.,;\n]|\Z)",
        *_RAISES,
        mentioned=_SPEAKS_OF_ERRORS,
    ),
    _template(
        "reason for an exception",
        "raises",
        rf"^(?P<subject>{_EXCEPTION}):? {_SENTENCE}",
        *_CONDITION,
        mentioned=_SPEAKS_OF_ERRORS,
    ),
    _template(
        "version added",
        None,
        r"(?:versionadded:: |[Aa]dded in (?:version )?|[Nn]ew in (?:version )?)v?"
        r"(?P<answer>\d[\w.]*\w)",
        "Since which version is there {name}?",
        "When was {name} added?",
        mentioned=_SPEAKS_OF_VERSIONS,
    ),
    _template(
        "version deprecated",
        None,
        r"(?:\bdeprecated:: |[Dd]eprecated (?:since|in|as of) (?:version )?)v?"
        r"(?P<answer>\d[\w.]*\w)",
        "Since which version is {name} deprecated?",
        "When was {name} deprecated?",
        mentioned=_SPEAKS_OF_VERSIONS,
    ),
    _template(
        "equivalent",
        None,
        r"(?:^|\. )(?:(?:This|It)(?: \w+)? is )?[Ee]quivalent to "
        r"(?P<answer>[^\n,;]+?)(?=[,;\n]|\.(?:\s|\Z)|\Z)",
        "What is {name} equivalent to?",
        mentioned=r"equivalent|same as|alias|like",
    ),
)


def find_statements(documented: DocumentedObject) -> list[Statement]:
    """All unambiguous statements that the templates find, in the templates' order.

    Questions that would have two different answers are left out, as are answers that are long, have
    unbalanced brackets or contain no letter or digit.
    """
    found: dict[tuple[str, str], list[Statement]] = collections.defaultdict(list)
    for template in TEMPLATES:
        for statement in _matches(template, documented):
            found[template.kind, statement.subject].append(statement)
    context = documented.context
    unambiguous = []
    for statements in found.values():
        answers = {context[s.answer.start : s.answer.end].lower() for s in statements}
        if len(answers) == 1:
            unambiguous.append(statements[0])
    return unambiguous


def _matches(template: Template, documented: DocumentedObject) -> Iterator[Statement]:
    if template.section is None:
        start, end = 0, len(documented.context)
    elif template.section in documented.sections:
        start, end = documented.sections[template.section]
    else:
        return
    for match in template.pattern.finditer(documented.context[start:end]):
        subject = match.groupdict().get("subject") or ""
        if subject[:1].isupper() and " " in subject:  # "If x is negative" within a question
            subject = subject[0].lower() + subject[1:]
        answer = match["answer"].rstrip(" .,:;")
        if is_answer(answer):
            first = start + match.start("answer")
            yield Statement(template, subject, Span(first, first + len(answer)))


def is_answer(text: str) -> bool:
    """Whether a text can be an answer: short, with balanced brackets and a letter or digit."""
    if len(text.split()) > MAX_ANSWER_WORDS or not any(map(str.isalnum, text)):
        return False
    depth = 0
    for char in text:
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth < 0:
            return False
    return depth == 0 and text == text.strip() and text.count('"') % 2 == 0
