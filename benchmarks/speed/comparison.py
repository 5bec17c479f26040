"""A comparison from flags to results: subjects are chosen, take turns, and get a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.machine import describe_machine, machine_line
from benchmarks.results import Result, print_table, ratio_result, spread_result
from benchmarks.script import FlagTable, known_names, shared_flags
from benchmarks.speed.process import Found, run_in_process
from benchmarks.speed.subjects import Subject, default_subjects, with_other_python
from benchmarks.speed.turns import take_turns
from bert_tf.util.errors import UserError
from bert_tf.util.files import require_file

# Name -> value and unit; the first is a rate.
Figures = dict[str, tuple[float, str]]

_DETAILS = ("precision", "loss", "tensorflow", "gflops")
_GOOGLE_FILE = "tokenization.py"  # every checkout of google-research/bert has it


def subject_flags(subjects: Mapping[str, Subject]) -> FlagTable:
    """Flags for choosing subjects."""
    return {
        "subjects": ([], f"Subjects, of {', '.join(subjects)} (default: all possible ones)."),
        "google_bert_dir": (str, "Directory of a checkout of google-research/bert."),
        "other_python": (
            str,
            "The Python of another environment, in which each of ours takes part once more.",
        ),
        **shared_flags("json"),
    }


def comparison_flags(subjects: Mapping[str, Subject], *shared: str) -> FlagTable:
    """Flags of all comparisons that take turns, and the named ``shared`` ones."""
    return {
        **subject_flags(subjects),
        **shared_flags("turns", *shared),
        "most_foreign_load": (0.06, "Largest load of others, as a fraction, in a valid turn."),
        "retries": (2, "How often an invalid turn is repeated.", 0),
    }


def subjects_from_flags(subjects: Mapping[str, Subject]) -> list[Subject]:
    """The subjects in --subjects, or all possible ones; and ours again for --other_python.

    Adds --google_bert_dir to the settings of google-research/bert. Raises UserError for unknown
    names, subjects that cannot run and missing files.
    """
    values = flags.FLAGS
    checkout = values.google_bert_dir
    chosen = [subjects[name] for name in known_names("subjects", subjects)]
    needing = [subject.name for subject in chosen if subject.is_google_bert]
    if checkout is not None:
        require_file(Path(checkout, _GOOGLE_FILE), flag="google_bert_dir")
    elif needing:
        raise UserError(
            f"--subjects: {needing[0]} needs --google_bert_dir, a checkout of google-research/bert."
        )
    chosen = chosen or default_subjects(
        subjects,
        cpu_features=describe_machine()["cpu_features"],
        has_google_bert=checkout is not None,
    )
    for number, subject in enumerate(chosen):
        if subject.is_google_bert:
            settings = {**subject.settings, "google_bert_dir": str(Path(checkout).resolve())}
            chosen[number] = dataclasses.replace(subject, settings=settings)
    if values.other_python is None:
        return chosen
    require_file(values.other_python, flag="other_python")
    return with_other_python(chosen, values.other_python)


def compare(
    known: Mapping[str, Subject],
    job: Mapping[str, Any],
    function: str,
    *figures: Callable[[Found], Figures],
    config: Mapping[str, Any],
) -> Iterator[Result]:
    """Takes the turns; prints a table for each of ``figures`` and yields the results.

    Args:
      known: possible subjects, by name; --subjects chooses.
      job: JSON.
      function: name of a function in the subjects' modules that maps the job to findings.
      figures: map a turn's findings to compared values.
      config: configuration of the results.

    Raises:
      UserError: a subject failed; the others have been reported.
    """
    values = flags.FLAGS
    subjects = subjects_from_flags(known)
    print(machine_line(), flush=True)

    def measure(subject: Subject) -> Found:
        found = run_in_process(subject, job, function)
        value, unit = next(iter(figures[0](found).values()))
        print(f"{subject.name}: {value:.4g} {unit}", flush=True)
        return found

    taken = take_turns(
        subjects,
        measure,
        turns=values.turns,
        most_foreign=values.most_foreign_load,
        retries=values.retries,
    )
    for compared in figures:
        results = subject_results(subjects, taken.found, compared, config=config)
        print_table(results, most_foreign=values.most_foreign_load)
        yield from results
    taken.raise_failures()


def subject_results(
    subjects: Sequence[Subject],
    found: Mapping[str, Sequence[Found]],
    figures: Callable[[Found], Figures],
    *,
    config: Mapping[str, Any],
) -> list[Result]:
    """Results of the ``subjects`` in ``found``, then how many times faster ours are.

    Ratios are taken turn by turn from the first of the figures. Arguments are as in
    :func:`compare`; ``found`` contains the findings of each turn by subject.
    """
    present = [subject for subject in subjects if subject.name in found]
    results, rates = [], {}
    for subject in present:
        turns = found[subject.name]
        described = {
            **config,
            "settings": dict(subject.settings),
            "environment": dict(subject.environment),
            "others_share_of_machine": [turn.get("foreign_share") for turn in turns],
            **{name: turns[0][name] for name in _DETAILS if name in turns[0]},
        }
        of_turns = [figures(turn) for turn in turns]
        for name, (_, unit) in of_turns[0].items():
            values = [figure[name][0] for figure in of_turns]
            results.append(spread_result(name, values, unit, described, subject.name))
        compared, *_ = of_turns[0]
        rates[subject.name] = [figure[compared][0] for figure in of_turns]
    results += [
        ratio_result(
            f"{compared}, {ours.name} to {other.name}",
            rates[ours.name],
            rates[other.name],
            config,
            ours.name,
        )
        for ours in present
        for other in present
        if ours.is_compared_with(other)
    ]
    return results
