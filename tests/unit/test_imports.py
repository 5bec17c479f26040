"""Imports point one way and have no effects."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, environment

# Each room with the rooms that it may import, beside the leaf modules of bert_tf itself.
ALLOWED = {
    "bert_tf": set(),
    "bert_tf.config": {"bert_tf.glue", "bert_tf.text"},
    "bert_tf.text": set(),
    "bert_tf.native": set(),
    "bert_tf.estimator": set(),
    "bert_tf.records": {"bert_tf.text"},
    "bert_tf.input": {"bert_tf.records"},
    "bert_tf.squad": {"bert_tf.records", "bert_tf.text"},
    "bert_tf.glue": {"bert_tf.records", "bert_tf.text"},
    "bert_tf.tagging": {"bert_tf.records", "bert_tf.text"},
    "bert_tf.report": {"bert_tf.squad"},
    "bert_tf.scoring": {"bert_tf.config", "bert_tf.input", "bert_tf.records", "bert_tf.text"},
    "bert_tf.model": {"bert_tf.config", "bert_tf.native"},
    "bert_tf.checkpoint": {"bert_tf.config", "bert_tf.model", "bert_tf.text"},
    "bert_tf.ranks": {"bert_tf.config"},
    "bert_tf.watch": {"bert_tf.config", "bert_tf.ranks"},
    "bert_tf.update": {"bert_tf.config", "bert_tf.model", "bert_tf.native", "bert_tf.ranks"},
    "bert_tf.tuning": {
        "bert_tf.config",
        "bert_tf.model",
        "bert_tf.native",
        "bert_tf.ranks",
        "bert_tf.update",
    },
    "bert_tf.inference": {
        "bert_tf.checkpoint",
        "bert_tf.config",
        "bert_tf.model",
        "bert_tf.ranks",
        "bert_tf.squad",
        "bert_tf.text",
        "bert_tf.tuning",
    },
    "bert_tf.training": {
        "bert_tf.checkpoint",
        "bert_tf.config",
        "bert_tf.estimator",
        "bert_tf.input",
        "bert_tf.model",
        "bert_tf.ranks",
        "bert_tf.records",
        "bert_tf.text",
        "bert_tf.tuning",
        "bert_tf.update",
        "bert_tf.watch",
    },
    "bert_tf.tasks": {
        "bert_tf.checkpoint",
        "bert_tf.config",
        "bert_tf.estimator",
        "bert_tf.glue",
        "bert_tf.inference",
        "bert_tf.input",
        "bert_tf.model",
        "bert_tf.ranks",
        "bert_tf.records",
        "bert_tf.report",
        "bert_tf.scoring",
        "bert_tf.squad",
        "bert_tf.tagging",
        "bert_tf.text",
        "bert_tf.training",
        "bert_tf.tuning",
        "bert_tf.update",
    },
    "bert_tf.doctor": {
        "bert_tf.checkpoint",
        "bert_tf.config",
        "bert_tf.inference",
        "bert_tf.model",
        "bert_tf.ranks",
        "bert_tf.records",
        "bert_tf.tasks",
        "bert_tf.text",
        "bert_tf.training",
        "bert_tf.update",
    },
    "bert_tf.commands": {
        "bert_tf.checkpoint",
        "bert_tf.config",
        "bert_tf.doctor",
        "bert_tf.inference",
        "bert_tf.model",
        "bert_tf.squad",
        "bert_tf.tasks",
        "bert_tf.text",
    },
    # Of a checkpoint only what stands beside the weights; without TensorFlow, see below.
    "data_prep": {
        "bert_tf.checkpoint",
        "bert_tf.input",
        "bert_tf.records",
        "bert_tf.report",
        "bert_tf.text",
    },
}
SOURCES = sorted([*ROOT.glob("bert_tf/**/*.py"), *ROOT.glob("data_prep/**/*.py")])


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module):
    """``bert_tf.input`` for ``bert_tf.input.order``; ``bert_tf`` for ``bert_tf.files``."""
    parts = module.split(".")
    if parts[0] != "bert_tf":
        return parts[0]
    is_room = len(parts) > 1 and (ROOT / "bert_tf" / parts[1]).is_dir()
    return ".".join(parts[:2]) if is_room else "bert_tf"


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_point_one_way(path):
    own = room_of(module_name(path))
    for imported in imports_of(path):
        top = imported.split(".")[0]
        if top in ("run_pretraining", "tests", "tools", "benchmarks"):
            pytest.fail(f"{path} imports {imported}")
        if top not in ("bert_tf", "data_prep"):
            continue
        room = room_of(imported)
        if room not in (own, "bert_tf"):
            assert room in ALLOWED[own], f"{path} imports {imported}"


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


def test_data_preparation_needs_no_tensorflow_at_import():
    modules = [module_name(path) for path in SOURCES if path.parent.name == "data_prep"]
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


def test_a_prediction_needs_no_update():
    code = """
import sys
from bert_tf.inference.predictor import Predictor
from bert_tf.tuning.speed_choice import measured_choice
assert not [name for name in sys.modules if name.startswith("bert_tf.update")]
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), check=True)


def test_only_entry_points_read_flags():
    """Below the entry scripts, a module with a command of its own reads flags in that command.

    data_prep/stage.py serves the commands of all stages, config/flags.py the training scripts, and
    command_line.py parses the flags of all.
    """
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if "flags.FLAGS" in text and path.name not in ("stage.py", "flags.py", "command_line.py"):
            assert 'if __name__ == "__main__":' in text, path


def test_one_spelling_of_tensorflow():
    for path in SOURCES:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip().startswith(("import tensorflow", "from tensorflow")):
                allowed = ("import tensorflow.compat.v1 as tf", "from tensorflow.core.")
                assert line.strip().startswith(allowed), f"{Path(path).name}: {line}"
