"""``report.html`` of tagging: scores, types, confusions, and the worst sentences with entities."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_tf.finetune.report import Report, confusion_table, worst_examples
from bert_tf.finetune.scores import Counts
from bert_tf.tasks.tagging.chunks import (
    CORRECT,
    ONLY_TYPE,
    OUTCOMES,
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
from bert_tf.util.page import Example, Section, Table

_NONE = "none"
_ANY_TYPE = "entity"  # shown for entities whose labels have no type


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
    find, unit = (entities_of, "entities") if has_entities else (words_as_entities, "words")
    matches = [
        match_entities(find(sentence.labels), find(labels))
        for sentence, labels in zip(file.sentences, predicted)
    ]
    counts = count_entities((s.labels for s in file.sentences), predicted, find=find)
    everything = [*itertools.chain(*matches)]
    ends = np.cumsum([len(sentence.words) for sentence in file.sentences])
    costs = [
        (num_wrong(of_sentence), float(loss.sum()))
        for of_sentence, loss in zip(matches, np.split(losses, ends[:-1]))
    ]
    Report(
        f"Labels of {file.path.name}",
        results,
        {"eval_f1": "f1"} if has_entities else {"eval_accuracy": "accuracy"},
        {
            "file": file.path,
            "sentences": f"{len(file.sentences):,}",
            "words": f"{file.num_words:,}",
        },
        worst_examples("Sentences", costs, lambda n: _example(file.sentences[n], matches[n])),
        sections=[Section("Types", tables=list(_tables(counts, everything, unit)))],
    ).write(output_dir)


def num_wrong(matches: Sequence[Match]) -> int:
    """The number of a sentence's entities that are not correct."""
    return sum(match.outcome != CORRECT for match in matches)


def _tables(counts: Mapping[str, Counts], matches: Sequence[Match], unit: str) -> Iterator[Table]:
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
    yield Table("Scores of each type", columns, rows)
    outcomes = collections.Counter(match.outcome for match in matches)
    became = [(name, f"{outcomes[name]:,}", OUTCOMES[name]) for name in OUTCOMES if outcomes[name]]
    yield Table(f"What became of {unit}", ("outcome", unit, "meaning"), became)
    # Without a partner, an entity is confused with none.
    numbers = {kind: number for number, kind in enumerate(counts)}
    labelled, predicted = (
        np.array([numbers[entity.type] if entity else len(numbers) for entity in side], int)
        for side in ([match.labelled for match in matches], [match.predicted for match in matches])
    )
    yield confusion_table([*named, _NONE], labelled, predicted, unit=unit)


def _example(sentence: Sentence, matches: Sequence[Match]) -> Example:
    """A sentence whose entities are marked, and listed by what became of them."""
    became: dict[str, list[str]] = {name: [] for name in OUTCOMES}
    for match in matches:
        became[match.outcome].append(_said(sentence.words, match))
    ends = np.cumsum([len(word) + 1 for word in sentence.words]) - 1
    wrong = num_wrong(matches)

    def places(entities: Sequence[Entity | None]) -> list[tuple[int, int]]:
        firsts = [0, *(int(end) + 1 for end in ends)]
        return [(firsts[e.start], int(ends[e.end - 1])) for e in entities if e is not None]

    return Example(
        str(sentence.first_line),
        f"Line {sentence.first_line:,}",
        " ".join(sentence.words),
        marks={
            "true": places([match.labelled for match in matches]),
            "predicted": places([match.predicted for match in matches]),
        },
        answers={name: entities for name, entities in became.items() if entities},
        facts=[f"{wrong} of {len(matches)} wrong"],
        filters={"Wrong": str(wrong)},
    )


def _said(words: Sequence[str], match: Match) -> str:
    """The words of a match and its type, or both types."""
    entities = match.entities
    first, last = min(e.start for e in entities), max(e.end for e in entities)
    types = f"{_shown(entities[0].type)}"
    if match.outcome == WRONG_TYPE:
        types += f", predicted as {_shown(entities[-1].type)}"
    return f"{' '.join(words[first:last])} ({types})"


def _shown(kind: str) -> str:
    return _ANY_TYPE if kind == ONLY_TYPE else kind
