"""The recipes say where they come from; the container file is built from what is there.

The arithmetic of the recipes is in test_recipe_ledgers.py. No container engine runs here: what can
be read is checked, and what its commands need is tried in a directory that holds nothing but what
they were given.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from absl import flags

from bert_tf.model.config import BertConfig
from bert_tf.tasks.pretraining.flags import (
    define_distillation_flags,
    distillation_settings,
)
from tests.helpers.jobs import resolve_on
from tests.helpers.programs import ROOT

# Those that give a network; the others only change defaults (config/test_nvidia_defaults.py).
FLAG_FILES = sorted(
    path
    for kind in ("bert", "fast", "squad")
    for path in (ROOT / "recipes").glob(f"{kind}_*.flags")
)
DISTILLATION = ROOT / "recipes/distilbert.flags"
CONFIGS = sorted((ROOT / "recipes").glob("bert_*.json"))
CONTAINER_FILE = ROOT / "recipes/Containerfile"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_architectures(path):
    assert BertConfig.from_json_file(path).to_dict().items() >= json.loads(path.read_text()).items()


@pytest.mark.parametrize("path", [*FLAG_FILES, DISTILLATION], ids=lambda path: path.name)
def test_a_recipe_says_where_it_comes_from(path):
    comments = "".join(line for line in path.read_text().splitlines(True) if line[0] == "#")
    for part in ("Source:", "Expected:", "Add --in"):
        assert part in comments
    assert max(map(len, path.read_text().splitlines())) <= 100


@pytest.mark.parametrize(("ranks", "accumulation_steps"), [(1, 400), (8, 50), (16, 25)])
def test_distilbert_as_published(ranks, accumulation_steps, tmp_path, monkeypatch):
    """The command and the defaults of Hugging Face's example, on the paper's 8 GPUs."""
    monkeypatch.chdir(ROOT)
    records = tmp_path / "part-00000.tfrecord"
    records.touch()
    values = flags.FlagValues()
    define_distillation_flags(values)
    arguments = [f"--flagfile={DISTILLATION}", f"--input_file={records}", f"--eval_file={records}"]
    values(["program", *arguments, f"--output_dir={tmp_path}", "--teacher_checkpoint=bert"])
    settings = distillation_settings(values)
    found = settings.distillation
    assert (found.alpha_ce, found.alpha_label, found.alpha_cos) == (5, 2, 1)
    assert (found.temperature, found.restrict_ce_to_mask) == (2, False)
    assert found.student_layers == (0, 2, 4, 7, 9, 11)
    assert not settings.next_sentence
    optimization = settings.optimization
    assert (optimization.steps.num_train_epochs, optimization.steps.warmup_proportion) == (3, 0.05)
    assert (optimization.schedule.learning_rate, optimization.weight_decay) == (5e-4, 0)
    assert optimization.clip_norm == 5
    assert optimization.optimizer_options["beta_2"] == 0.98
    [(pattern, factor)] = optimization.rate_factors
    assert re.search(pattern, "bert/embeddings/position_embeddings")
    assert factor == 0
    batch = resolve_on(optimization, ranks, 10**6).batch
    assert batch.accumulation_steps == accumulation_steps
    assert batch.global_batch_size == 5 * 50 * 8


def instructions():
    """(instruction, words) of the container file, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", CONTAINER_FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def stages():
    """Stage -> its instructions; what stands before the first one is under None."""
    found, stage = {None: []}, None
    for name, rest in instructions():
        if name == "FROM":
            base, stage = re.fullmatch(r"(\S+) AS (\w+)", rest).groups()
            found[stage] = [("FROM", base)]
        else:
            found[stage].append((name, rest))
    return found


def copies_from_the_project(stage):
    for name, rest in stage:
        if name == "COPY" and not rest.startswith("--from="):
            *sources, target = shlex.split(rest)
            yield sources, target


def test_container_instructions_and_bases():
    known = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "CMD"}
    assert {name for name, _ in instructions()} == known
    found = stages()
    arguments = dict(rest.split("=") for name, rest in found[None] if name == "ARG")
    assert arguments == {"BUILD_BASE": "python:3.11-slim", "RUN_BASE": "python:3.11-slim"}
    assert [found[stage][0] for stage in ("build", "run")] == [
        ("FROM", "${BUILD_BASE}"),
        ("FROM", "${RUN_BASE}"),
    ]
    for image in re.findall(r"_BASE=(\S+)", CONTAINER_FILE.read_text(encoding="utf-8")):
        assert "." not in image.split("/")[0].split(":")[0], f"{image} names a registry's host"


def test_a_container_is_given_what_is_in_the_project():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    for stage in stages().values():
        for sources, _ in copies_from_the_project(stage):
            for source in sources:
                assert (ROOT / source).exists(), source
                assert not tracked or any(
                    name == source or name.startswith(f"{source}/") for name in tracked
                ), f"{source} is not in the repository"


def test_the_second_stage_takes_the_directory_where_the_first_one_worked():
    found = stages()
    work = [rest for stage in ("build", "run") for name, rest in found[stage] if name == "WORKDIR"]
    taken = [rest for name, rest in found["run"] if name == "COPY" and "--from=build" in rest]
    assert taken == [f"--from=build {work[0]} {work[0]}"]
    assert work[0] == work[1], "the environment's scripts have its path in them"
    variables = " ".join(rest for name, rest in found["run"] if name == "ENV")
    assert f"VIRTUAL_ENV={work[0]}/.venv" in variables


@pytest.fixture
def build_directory(tmp_path):
    """What the first stage holds when it runs make."""
    for sources, target in copies_from_the_project(stages()["build"]):
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tmp_path / target)
            else:
                (tmp_path / target).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, tmp_path / target)
    return tmp_path


def test_the_environment_is_made_from_the_files_that_are_there(build_directory):
    [command] = [r for name, r in stages()["build"] if name == "RUN" and "make setup" in r]
    [make] = re.findall(r"make setup [^&]*", command)
    rehearsed = subprocess.run(
        ["make", "--dry-run", *shlex.split(make.replace("$ACCELERATOR", "gpu"))[1:]],
        cwd=build_directory,
        capture_output=True,
        text=True,
        check=True,
    )
    program = re.search(r"(\S+\.py) --venv \S+ .*--accelerator gpu", rehearsed.stdout)[1]
    for arguments in ([program, "--help"], ["setup.py", "--quiet", "egg_info"]):
        subprocess.run(
            [sys.executable, *arguments], cwd=build_directory, check=True, capture_output=True
        )
    sources = (build_directory / "bert_tf.egg-info/SOURCES.txt").read_text()
    for name in ("bert_tf/__init__.py", "data_prep/__init__.py"):
        assert name in sources


def test_the_command_of_a_container_is_there():
    found = stages()["run"]
    [command] = [json.loads(rest) for name, rest in found if name == "CMD"]
    assert command[0] == "python"
    assert any(command[1] in sources for sources, _ in copies_from_the_project(stages()["build"]))
