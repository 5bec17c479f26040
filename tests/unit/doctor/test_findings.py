"""Findings, and the judgements that need no run."""

import itertools

import numpy as np
import pytest
from absl import flags

from bert_tf.commands.doctor import show, split_command
from bert_tf.diagnose.memory import MemoryEstimate, free_memory
from bert_tf.doctor.examination import judge_memory
from bert_tf.doctor.findings import Findings
from bert_tf.doctor.judgement import PRETRAINING_RATES, judge_rate
from bert_tf.util.console import Grade, remark, say, warn
from bert_tf.util.errors import UserError
from tests.helpers.jobs import resolve_on
from tests.helpers.programs import run
from tests.helpers.settings import optimization_settings

GIB = 1 << 30


def test_an_attempt(capsys):
    findings = Findings()

    def fails():
        warn("this is slow.")
        remark("changed since the run's last start: x", part="there")
        say("something else")
        raise UserError("this is wrong.")

    assert findings.attempt("here", lambda number: number + 1, 2) == 3
    assert findings.worst == Grade.FINE
    assert findings.attempt("here", fails) is None
    assert findings.attempt("there", fails) is None
    assert list(findings) == [
        (Grade.ERROR, "here", "this is wrong."),
        (Grade.WARNING, "here", "this is slow."),
        (Grade.HINT, "there", "changed since the run's last start: x"),
    ]
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ValueError, match="a bug"):
        findings.attempt("here", lambda: (_ for _ in ()).throw(ValueError("a bug")))


@pytest.mark.parametrize(
    ("grades", "status"),
    [("", 0), ("fine hint", 0), ("hint warn fine", 1), ("warn error", 2)],
)
def test_the_exit_status(grades, status):
    findings = Findings()
    for number, grade in enumerate(grades.split()):
        getattr(findings, grade)("part", f"sentence {number}")
    assert findings.status == status


def test_the_worst_comes_first():
    findings = Findings()
    for grade in ("fine", "warn", "hint", "error", "warn"):
        getattr(findings, grade)("part", f"{grade} " * 30 + str(len(list(findings))))
    lines = list(show(findings, flags.FlagValues()))
    text = "\n".join(lines)
    names = [line.split(":")[0] for line in text.splitlines() if line[0] != " "]
    assert names[:-1] == ["error", "warning", "warning", "hint", "fine"]
    assert lines[-1] == "1 error, 2 warnings, 1 hint; 1 check found nothing"
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("line", "script", "rest"),
    [
        ("run_pretraining.py --a=1", "run_pretraining.py", "--a=1"),
        ("python some/run_squad.py --a=1", "run_squad.py", "--a=1"),
        ("--num_ranks=4 /usr/bin/python3 run_ner.py --a", "run_ner.py", "--num_ranks=4 --a"),
        ("--script=run_classifier.py --a", "run_classifier.py", "--script=run_classifier.py --a"),
        ("--help", "run_pretraining.py", "--help"),
        ("pretrain --a=1", "run_pretraining.py", "--a=1"),
        ("--num_ranks=4 bert-tf squad --a", "run_squad.py", "--num_ranks=4 --a"),
        ("/bin/bert-tf-classify --a", "run_classifier.py", "--a"),
        ("--task_name ner run_ner.py --a", "run_ner.py", "--task_name ner --a"),
    ],
)
def test_the_planned_command(line, script, rest):
    assert split_command(line.split()) == (script, rest.split())


@pytest.mark.parametrize("line", ["", "--do_train", "run_something.py --do_train"])
def test_a_command_without_a_script(line):
    with pytest.raises(UserError, match=r"name the script of the run after doctor, one of run_pre"):
        split_command(line.split())


def test_the_command(tmp_path):
    flags = ["--num_train_steps=10", f"--output_dir={tmp_path}/out"]
    command = ["-m", "bert_tf.commands.doctor", "python", "run_pretraining.py", "--do_train"]
    done = run(*command, "--hidden_size=16", *flags, check=False)
    assert done.returncode == 2
    assert "error:   flags: --do_train needs training records; give --input_file." in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("total", "local_size", "free", "has_gpu", "grade"),
    [
        (4, 1, 8, False, Grade.FINE),
        (4, 2, 8.5, False, Grade.WARNING),
        (4, 2, 7, False, Grade.ERROR),
        (4, 1, None, False, Grade.FINE),
        (4, 1, 1, True, Grade.FINE),
    ],
)
def test_memory(total, local_size, free, has_gpu, grade):
    estimate = MemoryEstimate(total * GIB, 0, 0, 0, 0, 0, local_size)
    findings = Findings()
    judge_memory(findings, estimate, free and int(free * GIB), has_gpu=has_gpu)
    assert [finding.grade for finding in findings] == [grade]


def test_free_memory(tmp_path):
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    cgroup.mkdir()
    assert free_memory(proc, cgroup) is None
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert free_memory(proc, cgroup) == 2 << 20
    (cgroup / "memory.max").write_text("max\n")
    assert free_memory(proc, cgroup) == 2 << 20
    (cgroup / "memory.max").write_text("1000\n")
    (cgroup / "memory.current").write_text("400\n")
    assert free_memory(proc, cgroup) == 600


def grade_of_rate(rate, batch, optimizer="adam"):
    optimization = optimization_settings(
        micro_batch_size=batch,
        num_train_steps=9,
        num_warmup_steps=1,
        learning_rate=rate,
        optimizer=optimizer,
        scale_steps_by_ranks=False,
    )
    findings = Findings()
    judge_rate(findings, resolve_on(optimization, 1), PRETRAINING_RATES)
    return findings.worst


def test_published_rates_are_usual():
    """Peak rates of published runs, with their batches."""
    published = [
        ("adam", 256, 1e-4),  # Devlin et al. 2019
        ("adam", 8192, 6e-4),  # Liu et al. 2019, base
        ("adam", 8192, 4e-4),  # and large
        ("adam", 256, 2e-4),  # Clark et al. 2020, large batches of 2,048 aside
        ("adam", 128, 5e-4),  # and small
        *(("lamb", 512 << n, 6.25e-4 * np.sqrt(2) ** n) for n in range(7)),  # You et al. 2020
        ("lamb", 65536, 6e-3),  # NVIDIA's first phase
        ("lamb", 32768, 4e-3),  # and second
    ]
    assert {grade_of_rate(rate, batch, name) for name, batch, rate in published} == {Grade.FINE}
    for (name, rate), batch in itertools.product([("adam", 0.1), ("lamb", 1.0)], (32, 8192)):
        assert grade_of_rate(rate, batch, name) == Grade.WARNING
    low, high = PRETRAINING_RATES["lamb"].bounds(512)
    assert PRETRAINING_RATES["lamb"].bounds(512 * 16) == (low, pytest.approx(4 * high))
    assert PRETRAINING_RATES["lamb"].bounds(8) == (low, high)
    assert grade_of_rate(1.0, 8, "muon") == Grade.FINE  # nothing is known
