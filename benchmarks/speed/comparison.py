"""What every comparison does with its flags: who takes part, turns in processes, and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from absl import flags

from benchmarks.machine import describe_machine, machine_line
from benchmarks.script import define_shared_flags
from benchmarks.speed.process import Found, run_in_process
from benchmarks.speed.subjects import (
    Subject,
    chosen_subjects,
    default_subjects,
    with_other_python,
)
from benchmarks.speed.turns import Comparison, Disturbance, take_turns
from bert_tf.files import require_file


def define_subject_flags(subjects: Mapping[str, Subject]) -> None:
    """Flags that say who takes part."""
    names = ", ".join(subjects)
    flags.DEFINE_list("subjects", [], f"Who takes part, of {names}; all that can if not given.")
    flags.DEFINE_string("google_bert_dir", None, "A checkout of google-research/bert.")
    flags.DEFINE_string(
        "other_python",
        None,
        "The interpreter of a second environment, in which each of ours takes part once more.",
    )
    define_shared_flags("threads", "json")


def define_comparison_flags(subjects: Mapping[str, Subject]) -> None:
    """Flags of every comparison whose subjects take turns in processes of their own."""
    define_subject_flags(subjects)
    define_shared_flags("turns")
    flags.DEFINE_float(
        "most_foreign_load", 0.06, "A larger share of the machine taken by others spoils a turn."
    )
    flags.DEFINE_integer("retries", 2, "How often a spoilt turn is taken again.", lower_bound=0)


def subjects_from_flags(subjects: Mapping[str, Subject]) -> list[Subject]:
    """Those of --subjects, or all that can take part here; and ours with --other_python."""
    values = flags.FLAGS
    has_google_bert = values.google_bert_dir is not None
    if values.subjects:
        chosen = chosen_subjects(
            values.subjects, has_google_bert=has_google_bert, subjects=subjects
        )
    else:
        features = describe_machine()["cpu_features"]
        chosen = default_subjects(
            cpu_features=features, has_google_bert=has_google_bert, subjects=subjects
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
    describe: Callable[[Found], str],
) -> Comparison:
    """Takes the turns of the flags, each of them announced by ``describe``."""
    values = flags.FLAGS
    print(machine_line(), flush=True)

    def measure(subject: Subject) -> Found:
        found = run_in_process(subject, job, function)
        print(f"{subject.name}: {describe(found)}", flush=True)
        return found

    disturbance = Disturbance(values.most_foreign_load, values.retries)
    comparison = take_turns(subjects, measure, turns=values.turns, disturbance=disturbance)
    print()
    return comparison
