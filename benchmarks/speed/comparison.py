"""A comparison of subjects, from flags to results: who takes part, turns in processes, a table."""

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
    """Flags that say who takes part."""
    return {
        "subjects": ([], f"Who takes part, of {', '.join(subjects)}; all that can if not given."),
        "google_bert_dir": (str, "A checkout of google-research/bert."),
        "other_python": (
            str,
            "The interpreter of a second environment, in which each of ours takes part once more.",
        ),
        **shared_flags("json"),
    }


def comparison_flags(subjects: Mapping[str, Subject], *shared: str) -> FlagTable:
    """Flags of every comparison whose subjects take turns, and of ``shared`` ones some."""
    return {
        **subject_flags(subjects),
        **shared_flags("turns", *shared),
        "most_foreign_load": (0.06, "A larger share of the machine taken by others spoils a turn."),
        "retries": (2, "How often a spoilt turn is taken again.", 0),
    }


def subjects_from_flags(subjects: Mapping[str, Subject]) -> list[Subject]:
    """Those of --subjects, or all that can take part here; and ours with --other_python.

    The settings of google-research/bert get --google_bert_dir. Raises UserError for a name that is
    none, for one that cannot run, and for files that do not exist.
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
    """Takes the turns of the flags; prints a table for each of ``figures`` and gives the results.

    Args:
      known: who can take part, by name; --subjects chooses.
      job: JSON.
      function: of the subjects' modules; it gets the job and returns what it found.
      figures: from what a turn found to what is compared.
      config: of the results.

    Raises:
      UserError: a subject failed; the others are reported before.
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
    """Figures of those of ``subjects`` that are in ``found``, then how many times faster ours are.

    Ratios are taken turn by turn from the first of the figures. The arguments are those of
    :func:`compare`; ``found`` has what each turn of a subject found.
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
