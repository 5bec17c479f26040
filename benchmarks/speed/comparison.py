"""A comparison of subjects, from flags to results: who takes part, turns in processes, a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from absl import flags

from benchmarks.machine import describe_machine, machine_line
from benchmarks.results import Result, ratio_result, spread_result
from benchmarks.script import FlagTable, known_names, shared_flags
from benchmarks.speed.process import Found, run_in_process
from benchmarks.speed.steps import StepJob
from benchmarks.speed.subjects import SUBJECTS, Subject, default_subjects, with_other_python
from benchmarks.speed.turns import take_turns
from bert_tf.errors import UserError
from bert_tf.files import require_file

# Name -> value and unit; the first is a rate.
Figures = dict[str, tuple[float, str]]

_MIB = 1 << 20
_DETAILS = ("precision", "loss", "tensorflow", "gflops", "features")
_STEP_FILES = ("modeling.py", "optimization.py", "run_pretraining.py", "run_squad.py")


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

    Raises UserError for a name that is none, or for one that cannot run.
    """
    values = flags.FLAGS
    chosen = [subjects[name] for name in known_names("subjects", subjects)]
    has_google_bert = values.google_bert_dir is not None
    for subject in chosen:
        if subject.is_google_bert and not has_google_bert:
            raise UserError(
                f"--subjects: {subject.name} needs --google_bert_dir, a checkout of "
                "google-research/bert."
            )
    chosen = chosen or default_subjects(
        subjects,
        cpu_features=describe_machine()["cpu_features"],
        has_google_bert=has_google_bert,
    )
    if values.other_python is None:
        return chosen
    require_file(values.other_python, flag="other_python")
    return with_other_python(chosen, values.other_python)


def google_bert_dir_from_flags(names: Sequence[str]) -> str | None:
    """--google_bert_dir; raises UserError where it lacks one of the files that are run."""
    directory = flags.FLAGS.google_bert_dir
    if directory is None:
        return None
    for name in names:
        require_file(Path(directory, name), flag="google_bert_dir")
    return str(Path(directory).resolve())


def compare(
    subjects: Sequence[Subject],
    job: Mapping[str, Any],
    function: str,
    *figures: Callable[[Found], Figures],
    config: Mapping[str, Any],
) -> Iterator[Result]:
    """Takes the turns of the flags; prints a table for each of ``figures`` and gives the results.

    Args:
      subjects: who takes part.
      job: JSON.
      function: of the subjects' modules; it gets the job and returns what it found.
      figures: from what a turn found to what is compared.
      config: of the results.

    Raises:
      UserError: a subject failed; the others are reported before.
    """
    values = flags.FLAGS
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
        print("\n" + "\n".join(subject_table(results, values.most_foreign_load)), flush=True)
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


def subject_table(results: Sequence[Result], most_foreign: float = 1.0) -> list[str]:
    """A line for each subject; an asterisk where others disturbed a turn."""
    by_subject: dict[str, list[Result]] = {}
    for row in results:
        if row["unit"] != "ratio":
            by_subject.setdefault(row["subject"], []).append(row)
    if not by_subject:
        return []
    ours = next((name for name in by_subject if name.startswith("ours")), None)
    first, *others = next(iter(by_subject.values()))
    columns: dict[str, list[float]] = {
        f"{row['name'].split()[-1]}, {row['unit']}": [] for row in others
    }
    rates, marked = {}, set()
    for name, (rate, *more) in by_subject.items():
        rates[name] = rate["config"]["turns"]
        if any(
            (share or 0.0) > most_foreign for share in rate["config"]["others_share_of_machine"]
        ):
            marked.add(name)
        for column, row in zip(columns.values(), more):
            column.append(row["value"])
    return rate_table(first["name"], first["unit"], rates, to=ours, columns=columns, marked=marked)


def rate_table(
    title: str,
    unit: str,
    rates: Mapping[str, Sequence[float]],
    *,
    to: str | None,
    columns: Mapping[str, Sequence[float]] = MappingProxyType({}),
    marked: Collection[str] = (),
) -> list[str]:
    """A line for each name: the median of its turns, their range, and the ratio of ``to`` to it.

    ``columns`` are further ones, a value for each name. ``marked`` names get an asterisk.
    """
    heads = "".join(f"{head:>14}" for head in columns)
    lines = [f"{title:34}{unit:>12}  {'turns':18}{f'{to} to it' if to else '':>14}{heads}"]
    for number, (name, turns) in enumerate(rates.items()):
        spread = f"{min(turns):.4g} to {max(turns):.4g}"
        times = f"{median_ratio(rates[to], turns):.3g}" if to else ""
        more = "".join(f"{values[number]:14.4g}" for values in columns.values())
        label = name + " *" * (name in marked)
        lines.append(f"{label:34}{statistics.median(turns):12.4g}  {spread:18}{times:>14}{more}")
    return [line.rstrip() for line in lines]


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The ratio of two rates, turn by turn."""
    return statistics.median(a / b for a, b in zip(above, below))


def step_flags(*names: str, **defaults: int) -> FlagTable:
    """The flags of a comparison of training steps, with the defaults of its task."""
    return {
        **comparison_flags(SUBJECTS, "threads", "bert_config_file", "accumulation_steps"),
        **shared_flags("warmup_steps", "steps", *names, **defaults),
    }


def compare_steps(task: str) -> Iterator[Result]:
    """Runs the comparison of the training steps of the flags."""
    job = StepJob.from_flags(task, google_bert_dir=google_bert_dir_from_flags(_STEP_FILES))
    if job.predictions > job.seq_length:
        raise UserError(f"--predictions={job.predictions} is more than --seq_length; lower it.")

    def figures(found: Found) -> Figures:
        return {
            f"{task} step": (job.sequences / found["seconds"], "sequences/s"),
            f"{task}, start": (found["first_step_seconds"], "s"),
            f"{task}, peak memory": (found["peak_memory_bytes"] / _MIB, "MiB"),
        }

    request = job.to_json()
    config = {name: value for name, value in request.items() if name != "google_bert_dir"}
    yield from compare(subjects_from_flags(SUBJECTS), request, "train", figures, config=config)
