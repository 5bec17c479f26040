"""Runs that are killed anywhere end as if they had not been: weights, logs, ``best/`` and files.

A kill comes at a change of the run's directory, in Python's or in TensorFlow's code, or at a random
time, and every third run is killed once more when it resumes. ``FORMS`` are the kinds of runs. The
environment variable KILLS is the number of killed runs of each; beyond a few there are timed kills
and runs of two ranks too:

    KILLS=50 python -m pytest tests/end_to_end/test_kills.py -k squad
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bert_tf.durable.sealed_json import SEAL
from tests.end_to_end.finetuning_runs import flags_of_a_short_run
from tests.helpers import glue_files, squad_files, tagging_files
from tests.helpers.programs import ROOT, environment, python, requires_horovod
from tests.helpers.small_pretraining import stdlib_documentation
from tests.helpers.tensors import variables_of

KILLS = int(os.environ.get("KILLS", "2"))

# The loss falls and rises, so that the best checkpoint is neither the first nor the last, and early
# stopping ends the run.
PRETRAINING = [
    "--do_train",
    "--do_eval",
    "--deterministic",
    "--num_train_steps=18",
    "--num_warmup_steps=15",
    "--learning_rate=0.02",
    "--eval_every_steps=3",
    "--max_eval_steps=1",
    "--early_stopping_evaluations=2",
    "--display_loss_steps=2",
    "--keep_checkpoint_max=2",
]
# Two phases, the second of which takes over the optimizer's state of the first, where updates grow
# after the second and the third one.
PHASES = (
    ["--num_train_steps=4", "--num_warmup_steps=2", "--save_checkpoints_steps=2",
     "--train_batch_size=2", "--global_batch_size=8", "--batch_ramp=4:0,8:2",
     "--length_ramp=16:0,32:3"],
    ["--num_train_steps=7", "--num_warmup_steps=2", "--resume_from=previous"],
)  # fmt: skip
FINETUNING = [
    "--do_train", "--do_eval", "--deterministic", "--num_train_steps=8", "--learning_rate=2e-3",
    "--save_checkpoints_steps=3", "--eval_every_steps=3", "--keep_checkpoint_max=2",
    "--train_batch_size=8",
]  # fmt: skip
SQUAD = [flag for flag in FINETUNING if flag != "--do_eval"]
DISTILLATION = [
    "--do_train", "--do_eval", "--num_train_steps=6", "--save_checkpoints_steps=2",
    "--eval_every_steps=2", "--max_eval_steps=1", "--min_target_probability=0.001",
    "--top_k_targets=20", "--alpha_cos=0", "--num_hidden_layers=1",
    "--restrict_ce_to_mask", "--deterministic",
]  # fmt: skip
# Half a micro batch each: as many steps, in other sums.
TWO_RANKS = ("--train_batch_size=4", "--scale_steps_by_ranks=false")


@dataclasses.dataclass(frozen=True)
class Form:
    """A kind of run.

    Attributes:
      script: the program.
      fixture: the fixture that makes the input and returns the flags that name it.
      flags: further flags; ``{run}`` in them is the directory whose changes are counted.
      two_ranks: flags for two ranks only.
      expected: some of the files that the run leaves in that directory.
    """

    script: str
    fixture: str
    flags: Sequence[str]
    two_ranks: Sequence[str] = TWO_RANKS
    expected: Sequence[str] = ("model/run.json",)


FORMS = {
    "pretraining": Form(
        "run_pretraining.py", "flags", PRETRAINING, expected=("model/best/checkpoint",)
    ),
    "plan": Form(
        "run_pretraining.py", "of_phases", ["--do_train", "--deterministic"],
        expected=("model/plan.json", "model/phase_1/run.json", "model/phase_2/model.ckpt-7.index"),
    ),
    "squad with seeds": Form(
        "run_squad.py", "of_squad",
        [*SQUAD, "--do_predict", "--seeds=1,2", "--features_dir={run}/features"],
        expected=("model/seeds.json", "model/seed_2/predictions.json"),
    ),
    "classification": Form(
        "run_classifier.py", "of_glue",
        [*FINETUNING, "--do_predict", "--features_dir={run}/features"],
        expected=("model/SST-2.tsv",),
    ),
    "tagging": Form(
        "run_ner.py", "of_tagging",
        [*FINETUNING, "--do_predict", "--features_dir={run}/features"],
        expected=("model/predictions.txt",),
    ),
    "distillation with kept targets": Form(
        "run_distillation.py", "of_distillation", [*DISTILLATION, "--cache_teacher={run}/targets"],
        expected=("targets/manifest.json",),
    ),
    "evaluation": Form(
        "run_evaluation.py", "of_evaluation",
        ["--all_checkpoints", "--metrics=masked,pseudo", "--max_seq_length=16",
         "--batch_tokens=200", "--precision=fp32"],
        two_ranks=(), expected=("model/perplexity.json",),
    ),
}  # fmt: skip
# What a run measures of itself, and a digest of it.
TIMES = re.compile(rf"time|.*sequences_per_second|{SEAL}")
MEASURED = re.compile(r"events\..*|run\.json|report\.html")
PLAN = "model/plan.json"
PLANNED = ("name", "state", "last_step", "updates", "sequences", "model_flops")


class Runs:
    """Starts of one form's command, some of which are killed."""

    def __init__(self, form: Form, flags: Sequence[str], killer: Path, directory: Path) -> None:
        self.form, self.flags, self.killer, self.directory = form, flags, killer, directory
        self.references = {}

    def start(self, ranks, directory, kill_at=None, seconds=None):
        """Status and output; ``kill_at`` is a change of ``directory``, ``seconds`` a time."""
        flags = [flag.format(run=directory) for flag in [*self.flags, *self.form.flags]]
        env = {**environment(), "LD_PRELOAD": str(self.killer), "KILL_UNDER": str(directory)}
        if kill_at is not None:
            env["KILL_AT"] = str(kill_at)
        command = [*python(env), self.form.script, *flags, f"--output_dir={directory / 'model'}"]
        if ranks > 1:
            command += ["--horovod", *self.form.two_ranks]
            command = ["mpirun", "-np", str(ranks), "--oversubscribe", *command]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return process.returncode, output

    def reference(self, ranks):
        """(state, number of changes, seconds) of a run that nobody kills."""
        if ranks not in self.references:
            directory = self.directory / f"reference_{ranks}"
            began = time.monotonic()
            status, output = self.start(ranks, directory)
            assert status == 0, output
            changes = max(map(int, re.findall(r"changes: (\d+)", output)))
            self.references[ranks] = (state_of(directory), changes, time.monotonic() - began)
        return self.references[ranks]


@pytest.fixture(scope="module")
def of_phases(flags, tmp_path_factory):
    directory = tmp_path_factory.mktemp("phases")
    files = [directory / f"{number}.flags" for number in range(len(PHASES))]
    for path, lines in zip(files, PHASES):
        path.write_text("\n".join(lines))
    return [*flags, f"--phases={','.join(map(str, files))}"]


@pytest.fixture(scope="module")
def finetuning(tmp_path_factory):
    """A directory for data, and the flags of a short run from the weights in it."""
    directory = tmp_path_factory.mktemp("finetuning")
    squad_files.write_model(directory / "start")
    return directory, flags_of_a_short_run(directory)


@pytest.fixture(scope="module")
def of_squad(finetuning):
    directory, flags = finetuning
    train, dev = (
        squad_files.write_squad(directory / f"{name}.json", size, seed=size)
        for name, size in (("train", 16), ("dev", 6))
    )
    files = [f"--train_file={train}", f"--predict_file={dev}", "--predict_batch_size=4"]
    return [*flags, *files, *squad_files.LENGTHS]


@pytest.fixture(scope="module")
def of_glue(finetuning):
    directory, flags = finetuning
    data = glue_files.write_data(directory / "SST-2")
    files = [f"--data_dir={data}", "--task_name=SST-2", f"--predict_file={data / 'test.tsv'}"]
    return [*flags, *files, *glue_files.LENGTHS]


@pytest.fixture(scope="module")
def of_tagging(finetuning):
    directory, flags = finetuning
    data = tagging_files.write_data(directory / "tagging")
    files = [f"--data_dir={data}", f"--predict_file={data / 'test.txt'}"]
    return [*flags, *files, *tagging_files.LENGTHS]


@pytest.fixture(scope="module")
def pretrained(flags, killer, tmp_path_factory):
    """The directory of a model with two checkpoints."""
    runs = Runs(FORMS["pretraining"], flags, killer, tmp_path_factory.mktemp("pretrained"))
    runs.reference(1)
    return runs.directory / "reference_1" / "model"


@pytest.fixture(scope="module")
def of_distillation(flags, pretrained):
    kept = [flag for flag in flags if not flag.startswith("--bert_config_file")]
    return [*kept, f"--teacher_checkpoint={pretrained}"]


@pytest.fixture(scope="module")
def of_evaluation(pretrained, tmp_path_factory):
    texts = tmp_path_factory.mktemp("texts") / "texts.txt"
    texts.write_text(stdlib_documentation(3_000)[:3_000], encoding="utf-8")
    return [f"--init_checkpoint={pretrained}", f"--input_file={texts}"]


@pytest.fixture(scope="module")
def runs_of(request, killer, tmp_path_factory):
    """From the name of a form to its ``Runs``, made once."""
    made = {}

    def get(name):
        if name not in made:
            form = FORMS[name]
            flags = request.getfixturevalue(form.fixture)
            directory = tmp_path_factory.mktemp(name.replace(" ", "_"))
            made[name] = Runs(form, flags, killer, directory)
        return made[name]

    return get


def state_of(directory):
    """All that a run leaves behind, without what it measures of itself."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    names = {path: str(path.relative_to(directory)) for path in paths}
    parts = {
        names[path]: content_of(path, names[path])
        for path in paths
        if not MEASURED.fullmatch(path.name) and ".data-" not in path.name
    }
    files = [name for path, name in names.items() if not path.name.startswith("events.")]
    return {"files": files, **parts}


def content_of(path, name):
    if path.suffix == ".index":
        return variables_of(path.with_suffix(""))
    if path.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in path.read_text().splitlines()]
    if name == PLAN:
        return phases_of(path)
    if path.suffix == ".json":
        return without_times(json.loads(path.read_text()))
    if path.suffix == ".txt":
        lines = path.read_text().splitlines()
        return [line for line in lines if not TIMES.match(line.partition(" = ")[0])]
    return path.read_bytes()


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not TIMES.fullmatch(k)}
    return value


def phases_of(path):
    return [{k: phase[k] for k in PLANNED} for phase in json.loads(path.read_text())["phases"]]


@pytest.mark.exhaustive
def test_the_reference_is_worth_comparing_with(runs_of):
    state, changes, _ = runs_of("pretraining").reference(1)
    losses = [line["loss"] for line in state["model/eval_log.jsonl"]]
    assert 0 < losses.index(min(losses)) < len(losses) - 1
    assert state["model/log.jsonl"][-1]["step"] < 18, "it stopped early"
    assert changes > 100


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", range(KILLS))
def test_killed_anywhere_it_ends_the_same(runs_of, tmp_path, form, number):
    """Kills a run, twice for some numbers, and compares what is left at its end."""
    runs = runs_of(form)
    rng = random.Random(f"{form} {number}")
    ranks = 2 if number % 5 == 4 else 1
    if ranks > 1 and requires_horovod.args[0]:
        pytest.skip(requires_horovod.kwargs["reason"])
    expected, changes, seconds = runs.reference(ranks)
    assert set(runs.form.expected) <= set(expected["files"])
    directory = tmp_path / "run"
    for _ in range(2 if number % 3 == 0 else 1):
        timed = number % 4 == 3
        where = {"seconds": rng.uniform(0.2, 1) * seconds} if timed else {
            "kill_at": rng.randrange(changes)
        }  # fmt: skip
        print(form, number, ranks, where, *runs.start(ranks, directory, **where))
    status, output = runs.start(ranks, directory)
    assert status == 0, output
    assert_same_state(state_of(directory), expected)


def assert_same_state(found, expected):
    for name, content in expected.items():
        if not name.endswith(".index"):
            assert found[name] == content, name
            continue
        assert found[name].keys() == content.keys()
        for variable, value in content.items():
            np.testing.assert_array_equal(
                found[name][variable], value, err_msg=f"{name}: {variable}"
            )
