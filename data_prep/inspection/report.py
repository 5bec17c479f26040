"""Statistics of a directory, as lines for a terminal and as a section of a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.text.tokenizer import Tokenizer
from bert_tf.util.page import Chart, Section, Table
from data_prep.inspection.hash_sample import HashSample
from data_prep.inspection.judgement import PRETRAINING_LABEL, Making, replacement_shares
from data_prep.inspection.origin import Origin
from data_prep.inspection.record_statistics import Conventions, Statistics
from data_prep.inspection.sample_text import LEGEND, ShownRecord
from data_prep.inspection.text_statistics import TextStatistics
from data_prep.text.left_out import Frequencies

_TERMINAL_BARS, _PAGE_BARS = 12, 64
_BAR_WIDTH = 50
_MOST_LABELS = 10
_MOST_FREQUENT, _FREQUENT_IN_TERMINAL = 20, 12


@dataclasses.dataclass(frozen=True)
class Histogram:
    """A figure: bar i goes from ``edges[i]`` to ``edges[i + 1]``, which does not belong to it.

    With ``powers`` the edges are powers of two, whose exponents are on the axis of a page.
    """

    title: str
    x_label: str
    y_label: str
    edges: Sequence[int]
    counts: Sequence[int]
    y_log: bool = False
    powers: bool = False

    @classmethod
    def of_values(
        cls, title: str, x_label: str, y_label: str, counts: np.ndarray, most_bars: int, **options
    ) -> Histogram:
        """At most ``most_bars`` of equal width for the numbers [V] of the values 0 to V - 1."""
        width = max(1, -(-len(counts) // most_bars))
        edges = np.minimum(np.arange(0, len(counts) + width, width), len(counts))
        return cls(
            title,
            x_label,
            y_label,
            edges.tolist(),
            np.add.reduceat(counts, edges[:-1]).tolist(),
            **options,
        )

    def lines(self) -> list[str]:
        """The bars in characters."""
        highest = max(self.counts, default=0) or 1
        ranges = [
            str(low) if high == low + 1 else f"{low:,}-{high - 1:,}"
            for low, high in zip(self.edges, self.edges[1:])
        ]
        width = max(map(len, ranges), default=0)
        return [
            f"  {self.y_label} by {self.x_label}:",
            *(
                f"  {name:>{width}} {count:>12,} " + "#" * round(_BAR_WIDTH * count / highest)
                for name, count in zip(ranges, self.counts)
            ),
        ]

    def chart(self) -> Chart:
        """The figure of a page."""
        edges, x_label = self.edges, self.x_label
        if self.powers:
            edges = [edge.bit_length() - 1 for edge in edges]
            x_label = f"{x_label}, as a power of 2"
        return Chart(
            self.title, x_label, self.y_label, edges=edges, counts=self.counts, y_log=self.y_log
        )


@dataclasses.dataclass(frozen=True)
class Findings:
    """What was found in a directory, to be shown.

    Attributes:
      name: of the directory.
      details: names and values.
      warnings: sentences.
      histograms: for a terminal, and
      fine_histograms: for a page.
      frequent: (token, number, share) of the most frequent tokens.
      samples: some records.
      notes: sentences on what was assumed.
    """

    name: str
    details: dict[str, str]
    warnings: list[str]
    histograms: Sequence[Histogram] = ()
    fine_histograms: Sequence[Histogram] = ()
    frequent: Sequence[tuple[str, str, str]] = ()
    samples: Sequence[ShownRecord] = ()
    notes: Sequence[str] = ()

    def lines(self) -> list[str]:
        """The findings for a terminal, without the warnings."""
        lines = [f"{self.name}:", *(f"  {name}: {value}" for name, value in self.details.items())]
        for figure in self.histograms:
            lines += figure.lines()
        if self.frequent:
            shown = (f"{token} {share}" for token, _, share in self.frequent)
            first = [text for text, _ in zip(shown, range(_FREQUENT_IN_TERMINAL))]
            lines.append(f"  most frequent tokens: {', '.join(first)}")
        lines += (f"  sample: {record.line()}" for record in self.samples)
        return [*lines, *(f"  note: {sentence}" for sentence in self.notes)]

    def section(self) -> Section:
        """The findings as a part of a page."""
        table = Table("Most frequent tokens", ("token", "number", "share"), self.frequent)
        return Section(
            self.name,
            details=self.details,
            sentences=[*(f"warning: {sentence}" for sentence in self.warnings), *self.notes],
            charts=[figure.chart() for figure in self.fine_histograms],
            tables=[table] if self.frequent else [],
            legend=LEGEND if self.samples else (),
            cards=[record.html() for record in self.samples],
        )


def describe_records(
    name: str,
    found: Statistics,
    repeated: HashSample,
    *,
    origin: Origin,
    label: str | None,
    warnings: list[str],
    samples: Sequence[ShownRecord],
) -> Findings:
    """The findings on records; ``label`` is the name of their label, None without one."""
    making, conventions = origin.making, origin.conventions
    tokens = max(found.tokens, 1)
    unknown = conventions.special_ids.get("unk")
    details = {
        "records": f"{found.records:,}",
        "tokens": f"{found.tokens:,}, {found.tokens / max(found.records, 1):.1f} a record",
        "padding": f"{found.padding_share:.1%} of {found.positions:,} positions",
        "unknown tokens": "not known" if unknown is None else f"{found.share_of(unknown):.3%}",
        "different ids": _used_ids(found, making.vocab_size),
        "repeated records": _repetitions(repeated),
    }
    if label is not None:
        details[label] = _labels(found)
    if found.num_predictions:
        details.update(_mask_details(found, making, conventions))
    elif label == PRETRAINING_LABEL and not len(found.predictions):
        details["masked tokens"] = "none are stored; training draws them"
    ids = found.ids
    if making.vocab_size is not None and len(ids) < making.vocab_size:
        ids = np.pad(ids, (0, making.vocab_size - len(ids)))

    order = np.argsort(-found.ids, kind="stable")[:_MOST_FREQUENT].tolist()
    frequent = [
        (_token(i, origin.tokenizer), f"{found.ids[i]:,}", f"{found.ids[i] / tokens:.2%}")
        for i in order
        if found.ids[i]
    ]
    return Findings(
        name,
        details,
        warnings,
        _histograms(found, ids, _TERMINAL_BARS),
        _histograms(found, ids, _PAGE_BARS),
        frequent,
        samples,
        origin.notes,
    )


def _histograms(found: Statistics, ids: np.ndarray, most_bars: int) -> list[Histogram]:
    """The figures on records; ``ids`` are tokens by id, for the whole vocabulary."""
    values = Histogram.of_values
    figures = [
        values("Lengths", "tokens of a record", "records", found.lengths, most_bars),
        values("Token ids", "token id", "tokens", ids, most_bars, y_log=True),
    ]
    if len(found.predictions):
        figures.append(
            values("Masks", "masks in a record", "records", found.predictions, most_bars)
        )
    return figures


def describe_text(
    name: str,
    found: TextStatistics,
    repeated: HashSample,
    warnings: list[str],
    manifest_counts: Mapping[str, int],
) -> Findings:
    """The findings on text; ``manifest_counts`` are those of its manifest."""
    details = {
        "documents": f"{found.documents:,}, {found.one_line:,} of a single line",
        "lines": f"{found.lines:,}, {found.long_lines:,} of them long",
        "characters": f"{found.characters:,}",
        "repeated documents": _repetitions(repeated),
    }
    templates = Frequencies.of(manifest_counts)
    if templates.total:
        details["templates left out"] = templates.line(_MOST_FREQUENT)
    figures = []
    for what, counts in (("document", found.document_lengths), ("line", found.line_lengths)):
        bins = np.flatnonzero(counts)
        if len(bins):
            used = range(max(bins[0], 1), bins[-1] + 1)
            edges = [*(1 << (b - 1) for b in used), 1 << used[-1]]
            figures.append(
                Histogram(
                    f"Characters of a {what}",
                    f"characters of a {what}",
                    f"{what}s",
                    edges,
                    counts[used[0] : used[-1] + 1].tolist(),
                    powers=True,
                )
            )
    return Findings(name, details, warnings, figures, figures)


def _mask_details(found: Statistics, making: Making, conventions: Conventions) -> dict[str, str]:
    share = found.num_predictions / max(found.tokens, 1)
    wanted = "an unknown number"
    if found.wanted:
        wanted = f"{found.wanted:,}, by masked_lm_prob {conventions.masked_lm_prob:g}"
    details = {
        "masked tokens": f"{found.num_predictions:,} ({share:.2%} of all tokens; expected {wanted})"
    }
    for name, (seen, expected, spread) in replacement_shares(found, making).items():
        what = {"mask": "[MASK]", "random": "random tokens", "kept": "unchanged"}[name]
        details[f"of these {what}"] = f"{seen:.2%} (expected {expected:.2%} +- {spread:.2%})"
    return details


def _labels(found: Statistics) -> str:
    total = sum(found.labels.values())
    shown = sorted(found.labels.most_common(_MOST_LABELS))
    parts = [f"{value:g}: {number:,} ({number / total:.1%})" for value, number in shown]
    others = len(found.labels) - len(shown)
    return ", ".join(parts) + (f" and {others:,} rarer ones" if others else "")


def _used_ids(found: Statistics, vocab_size: int | None) -> str:
    used = int(np.count_nonzero(found.ids))
    of_all = "" if vocab_size is None else f" of {vocab_size:,}"
    return f"{used:,}{of_all}, the highest {len(found.ids) - 1:,}" if used else "none"


def _repetitions(repeated: HashSample) -> str:
    counts = repeated.counts()
    if not len(counts):
        return "none"
    how = "of all" if repeated.one_in == 1 else f"of a sample of one in {repeated.one_in}"
    return (
        f"{repeated.repeated_share():.2%} {how}; the most frequent one occurs {counts[0]:,} times"
    )


def _token(token_id: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None or token_id >= tokenizer.vocab_size:
        return str(token_id)
    return tokenizer.convert_ids_to_tokens([token_id])[0]
