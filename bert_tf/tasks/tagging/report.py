"""``report.html`` of tagging: scores, types, confusions, and the worst sentences with entities."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.finetune.report import REPORT_NAME, confusion_table, results_section
from bert_tf.finetune.scores import Counts
from bert_tf.tasks.tagging.chunks import (
    CORRECT,
    MISSED,
    ONLY_TYPE,
    OUTCOMES,
    SPURIOUS,
    WRONG_BOUNDARIES,
    WRONG_TYPE,
    Entity,
    Match,
    are_of_entities,
    count_entities,
    entities_of,
    match_entities,
    total,
    words_as_entities,
)
from bert_tf.tasks.tagging.files import Sentence, TaggedFile
from bert_tf.util.pages.page import Section, Table, badge, hint, mark, write_page

_MOST_SENTENCES = 30
_NONE = "none"
_ANY_TYPE = "entity"  # shown for entities whose labels have no type
# The style sheet's classes of good, middling and bad answers.
_STYLES = {CORRECT: "exact", WRONG_BOUNDARIES: "partly"}


class _Judged(NamedTuple):
    """A sentence with its entities; ``loss`` is the sum of its words' cross entropies."""

    sentence: Sentence
    matches: list[Match]
    loss: float

    @property
    def num_wrong(self) -> int:
        """The number of entities that are not correct."""
        return sum(match.outcome != CORRECT for match in self.matches)


def write_report(
    output_dir: Path,
    file: TaggedFile,
    predicted: Sequence[Sequence[str]],
    losses: np.ndarray,
    results: Mapping[str, float],
) -> None:
    """Writes the page for a file with labels and what was predicted.

    In a file whose labels do not mark entities, such as parts of speech, every word is treated as
    an entity whose type is its label. ``losses`` are the words' cross entropies, [words of all
    sentences] float32.
    """
    has_entities = are_of_entities(file.labels)
    find = entities_of if has_entities else words_as_entities
    ends = np.cumsum([len(sentence.words) for sentence in file.sentences])
    judged = [
        _Judged(sentence, match_entities(find(sentence.labels), find(labels)), float(loss.sum()))
        for sentence, labels, loss in zip(file.sentences, predicted, np.split(losses, ends[:-1]))
    ]
    counts = count_entities((s.labels for s in file.sentences), predicted, find=find)
    details = {
        "file": file.path,
        "sentences": f"{len(file.sentences):,}",
        "words": f"{file.num_words:,}",
    }
    score = "eval_f1" if has_entities else "eval_accuracy"
    sections = [
        results_section(output_dir, details, results, charted=[score]),
        _types(counts, judged, unit="entities" if has_entities else "words"),
        _worst(judged, shows_correct=has_entities),
    ]
    write_page(output_dir / REPORT_NAME, f"Labels of {file.path.name}", sections)


def _types(counts: Mapping[str, Counts], judged: Sequence[_Judged], *, unit: str) -> Section:
    named = {_shown(kind): of_kind for kind, of_kind in counts.items()}
    rows = [
        (
            name,
            *(f"{of_kind.scores[score]:.3f}" for score in ("precision", "recall", "f1")),
            *(f"{count:,}" for count in of_kind),
        )
        for name, of_kind in [*named.items(), ("all", total(counts.values()))]
    ]
    columns = ("type", "precision", "recall", "F1", unit, "predicted", "correct")
    matches = [match for sentence in judged for match in sentence.matches]
    outcomes = collections.Counter(match.outcome for match in matches)
    became = [
        (name, f"{outcomes[name]:,}", what) for name, what in OUTCOMES.items() if outcomes[name]
    ]
    return Section(
        "Types",
        tables=[
            Table("Scores of each type", columns, rows),
            Table(f"What became of {unit}", ("outcome", unit, "meaning"), became),
            _confusions(matches, list(counts), unit),
        ],
    )


def _confusions(matches: Sequence[Match], types: Sequence[str], unit: str) -> Table:
    """Types of matched entities; without a partner, an entity is confused with none."""
    numbers = {kind: number for number, kind in enumerate(types)}
    labelled, predicted = (
        np.array([numbers[entity.type] if entity else len(types) for entity in side], int)
        for side in ([match.labelled for match in matches], [match.predicted for match in matches])
    )
    names = [*map(_shown, types), _NONE]
    return confusion_table(names, labelled, predicted, unit=unit)


def _worst(judged: Sequence[_Judged], *, shows_correct: bool) -> Section:
    """The sentences with most wrong entities; of equal ones, the larger loss comes first."""
    wrong = [sentence for sentence in judged if sentence.num_wrong]
    wrong.sort(key=lambda sentence: (-sentence.num_wrong, -sentence.loss))
    kept = wrong[:_MOST_SENTENCES]
    return Section(
        f"The {len(kept)} worst sentences" if kept else "No mistakes",
        legend=_legend() if kept else (),
        cards=[_card(sentence, shows_correct) for sentence in kept],
    )


def _legend() -> list[str]:
    """Explains the marks, on examples."""
    words = ("some", "words")
    rows = (
        (Match(Entity("A", 0, 1), Entity("A", 0, 1)), "labelled and predicted"),
        (Match(Entity("A", 0, 1), Entity("B", 0, 1)), "labelled as A, predicted as B"),
        (Match(Entity("A", 0, 2), Entity("A", 1, 2)), "predicted at some of the labelled words"),
        (Match(Entity("A", 0, 1), None), "labelled only"),
        (Match(None, Entity("A", 0, 1)), "predicted only"),
    )
    return [
        f"{marked(words[: match.entities[0].end], [match])} {mark(what)}" for match, what in rows
    ]


def _card(judged: _Judged, shows_correct: bool) -> str:
    """A sentence with its marks, under its line in the file."""
    matches = [m for m in judged.matches if shows_correct or m.outcome != CORRECT]
    count = f"{judged.num_wrong} of {len(judged.matches)} wrong"
    place = hint(f"line {judged.sentence.first_line:,}: {count}")
    return place + marked(judged.sentence.words, matches)


def marked(words: Sequence[str], matches: Sequence[Match]) -> str:
    """HTML of a sentence, with each entity marked and its outcome and types written after it.

    Labelled words have a background, and predicted ones a line under them.
    """
    labelled, predicted = ([0] * len(words) for _ in range(2))
    ending = collections.defaultdict(list)
    for number, match in enumerate(matches, start=1):
        for of_words, entity in zip((labelled, predicted), match):
            if entity is not None:
                of_words[entity.start : entity.end] = [number] * (entity.end - entity.start)
        ending[max(entity.end for entity in match.entities)].append(match)
    pieces = []
    for numbers, places in itertools.groupby(
        range(len(words)), lambda n: (labelled[n], predicted[n])
    ):
        run = list(places)
        styles = [name for name, number in zip(("true", "predicted"), numbers) if number]
        pieces.append(mark(" ".join(words[run[0] : run[-1] + 1]), *styles))
        pieces += map(_badge, ending[run[-1] + 1])
    return " ".join(pieces)


def _badge(match: Match) -> str:
    names = [_shown(entity.type) for entity in match.entities]
    text = {
        CORRECT: names[0],
        WRONG_BOUNDARIES: f"{names[0]}, {WRONG_BOUNDARIES}",
        WRONG_TYPE: f"{names[0]}, predicted as {names[-1]}",
        MISSED: f"{MISSED} {names[0]}",
        SPURIOUS: f"{SPURIOUS} {names[0]}",
    }[match.outcome]
    return badge(text, _STYLES.get(match.outcome, "wrong"))


def _shown(kind: str) -> str:
    return _ANY_TYPE if kind == ONLY_TYPE else kind
