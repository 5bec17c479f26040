"""Imports point one way and have no effects."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.imports import imports_of
from tests.helpers.programs import ROOT, environment

# The rooms from the bottom up. A room imports those below it only.
ROOMS = (
    "util",
    "text",
    "durable",
    "update.optimizers",
    "update.schedules",
    "config",
    "cli",
    "native",
    "compat.estimator",
    "compat",
    "records",
    "input",
    "model",
    "model_directory",
    "checkpoint",
    "ranks",
    "watch",
    "update",
    "tuning",
    "inference",
    "train.run_log",
    "train.evaluation",
    "train.start_point",
    "train.run",
    "train.plan",
    "train.job",
    "train.hooks",
    "diagnose",
    "train",
    "tasks.distillation",
    "finetune",
    "tasks.pretraining",
    "tasks.replaced_tokens",
    "tasks.question_answering",
    "tasks.classification",
    "tasks.tagging",
    "tasks.multiple_choice",
    "tasks.scoring",
    "tasks.vectors",
    "serving",
    "doctor",
    "commands",
)
# What tasks share. Otherwise a task imports no other one, but for an objective of pre-training.
SHARED_TASKS = {"tasks.distillation"}
OBJECTIVES = {"tasks.replaced_tokens"}
# Some may import less than what is below them.
ONLY = {
    "data_prep": {
        "cli",
        "config",
        "durable",
        "input",
        "model_directory",
        "records",
        "text",
        "util",
    },
    "compat.estimator": {"util"},
    "inference": set(ROOMS[: ROOMS.index("tuning") + 1]) - {"records", "update", "watch"},
}
SOURCES = sorted([*ROOT.glob("bert_tf/**/*.py"), *ROOT.glob("data_prep/**/*.py")])


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module):
    """``input`` for ``bert_tf.input.order``; None for the package itself."""
    top, *parts = module.split(".")
    if top != "bert_tf":
        return top
    names = [".".join(parts[:length]) for length in (2, 1)]
    return next((name for name in names if name in ROOMS), None)


def may_import(own, room):
    """Whether the modules of a room may import those of another one."""
    if own in ONLY:
        return room in ONLY[own]
    if own is None:
        return room == "util"
    if own.startswith("tasks.") and room.startswith("tasks."):
        shared = SHARED_TASKS | ({"tasks.pretraining"} if own in OBJECTIVES else set())
        if room not in shared:
            return False
    return ROOMS.index(room) < ROOMS.index(own)


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_point_one_way(path):
    own = room_of(module_name(path))
    for imported in imports_of(path):
        top = imported.split(".")[0]
        if top in ("run_pretraining", "tests", "tools", "benchmarks"):
            pytest.fail(f"{path} imports {imported}")
        room = room_of(imported)
        if top == "bert_tf" and room not in (own, None):
            assert may_import(own, room), f"{path} imports {imported}"


def test_every_module_is_in_a_room():
    names = [module_name(path) for path in SOURCES]
    outside = {name for name in names if room_of(name) is None}
    assert outside == {"bert_tf", "bert_tf.tasks"}


def test_no_module_imports_itself_by_way_of_others():
    modules = {module_name(path) for path in SOURCES}
    imports = {}
    for path in SOURCES:
        found = imports_of(path)
        of_names = {name if name in modules else name.rpartition(".")[0] for name in found}
        imports[module_name(path)] = of_names & modules
    while leaves := [module for module, found in imports.items() if not found]:
        imports = {m: found.difference(leaves) for m, found in imports.items() if m not in leaves}
    assert not imports, "these import each other, or what does"


def test_data_preparation_model_files_and_rows_of_the_update_need_no_tensorflow_at_import():
    names = ("data_prep", "model_directory", "optimizers", "schedules")
    found = [path for path in SOURCES if {path.stem, path.parent.name} & {*names}]
    modules = [module_name(path) for path in found]
    code = f"import {', '.join(modules)}; import sys; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), check=True)


@pytest.mark.each_tensorflow
def test_importing_everything_changes_nothing():
    """No flags, environment variables, sessions or threads of ours; no Horovod."""
    modules = [module_name(path) for path in SOURCES]
    code = f"""
import os, sys
import tensorflow.compat.v1 as tf
from absl import flags
before = dict(os.environ), set(flags.FLAGS), tf.executing_eagerly()
import importlib
for name in {modules!r}:
    importlib.import_module(name)
assert (dict(os.environ), set(flags.FLAGS), tf.executing_eagerly()) == before
assert "horovod" not in sys.modules and "torch" not in sys.modules
assert not tf.get_default_graph().get_operations()
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), check=True)


@pytest.mark.slow
def test_a_prediction_needs_no_update():
    code = """
import sys
from bert_tf.inference.predictor import Predictor
from bert_tf.tuning.arithmetic import choose
loaded = {name for name in sys.modules if name.startswith("bert_tf.update.")}
apart = ("bert_tf.update.optimizers", "bert_tf.update.schedules")
assert not {name for name in loaded if not name.startswith(apart)}
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), check=True)


def test_only_entry_points_read_flags():
    """Below the entry scripts, a module with a command of its own reads flags in that command.

    data_prep/stages/stage.py serves the commands of data_prep, cli those of bert_tf.
    """
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if "flags.FLAGS" in text and path.name != "stage.py" and path.parent.name != "cli":
            assert 'if __name__ == "__main__":' in text, path


def test_one_spelling_of_tensorflow():
    for path in SOURCES:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip().startswith(("import tensorflow", "from tensorflow")):
                allowed: tuple[str, ...] = (
                    "import tensorflow.compat.v1 as tf",
                    "from tensorflow.core.",
                )
                if path.as_posix().endswith("bert_tf/model/compilation.py"):
                    allowed += (
                        "from tensorflow.compiler.tf2xla",
                        "from tensorflow.python.framework import ops",
                    )
                elif path.parent.as_posix().endswith("bert_tf/compat/estimator"):
                    # What tf.estimator was built on, the same in every release after it.
                    allowed += ("from tensorflow.python.saved_model.model_utils",)
                assert line.strip().startswith(allowed), f"{Path(path).name}: {line}"
