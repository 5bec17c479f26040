"""The doctor for a script, and what it says."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from absl import flags

from bert_tf.cli.flags import mark_defaults
from bert_tf.compat.nvidia_defaults import adopt
from bert_tf.doctor import finetuning, pretraining
from bert_tf.doctor.findings import Finding, Findings, Grade
from bert_tf.doctor.model import require_no_phases
from bert_tf.doctor.training_scripts import DISTILLATION, ELECTRA, PRETRAINING, SCRIPTS
from bert_tf.ranks.planned import PlannedRanks

_NAMES = {
    Grade.ERROR: "error",
    Grade.WARNING: "warning",
    Grade.HINT: "hint",
    Grade.FINE: "fine",
}
_WIDTH, _INDENT = 100, 9


def examine(
    script: str, values: flags.FlagValues, *, num_ranks: int, ranks_per_host: int
) -> Findings:
    """Looks at a run of ``script`` with parsed flags; raises UserError for a plan of phases."""
    require_no_phases(values)
    findings = Findings()
    if num_ranks > 1 and not values.horovod:
        findings.warn(
            "flags",
            f"--num_ranks={num_ranks}, but the run has no --horovod, so each process would train "
            "by itself; add it",
        )
    of_nvidia = SCRIPTS[script].of_nvidia
    adopted = adopt(values, of_nvidia) if of_nvidia else ""
    if adopted:
        findings.hint("flags", adopted)
    ranks = PlannedRanks(num_ranks, local_size=min(ranks_per_host, num_ranks))
    if script in (PRETRAINING, DISTILLATION, ELECTRA):
        pretraining.examine(findings, SCRIPTS[script], values, ranks)
    else:
        finetuning.examine(findings, script, values, ranks)
    return findings


def show(findings: Findings, values: flags.FlagValues) -> Iterator[str]:
    """Lines for a terminal, the worst findings first, and a summary.

    ``values`` are the flags of the run.
    """
    counts = dict.fromkeys(sorted(_NAMES, reverse=True), 0)
    for finding in sorted(findings, key=lambda finding: -finding.grade):
        counts[finding.grade] += 1
        yield _shown(finding._replace(sentence=mark_defaults(finding.sentence, values)))
    parts = [f"{count} {_NAMES[grade]}{'s' * (count != 1)}" for grade, count in counts.items()]
    fine = counts[Grade.FINE]
    yield f"{', '.join(parts[:-1])}; {fine} check{'s' * (fine != 1)} found nothing"


def _shown(finding: Finding) -> str:
    """A finding with its further lines indented; a table in it stays one."""
    text = f"{_NAMES[finding.grade] + ':':<{_INDENT}}{finding.part}: {finding.sentence}"
    first, *table = text.splitlines()
    wrapped = textwrap.fill(
        first,
        _WIDTH,
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "\n".join([wrapped, *(" " * _INDENT + line for line in table)])
