"""What is published: the wheel and the sdist hold the same, and work outside of a checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.helpers.programs import ROOT

BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""
TEXT = "A sentence of the small text, number {}. Another one follows it, and is longer than that.\n"


def finish(*command, cwd, env=None):
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def not_source(directory, names):
    """What git ignores, for copytree."""
    made = {".*", "__pycache__", "*.so", "*.egg-info"}
    if Path(directory) == ROOT:
        made |= {"build", "demo", "dist"}
    return shutil.ignore_patterns(*made)(directory, names)


def build(hook, source, output):
    """The file that a hook of PEP 517 builds, with the environment's setuptools."""
    output.mkdir()
    finish(sys.executable, "-c", BUILD, hook, output, cwd=source)
    [built] = output.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    directory = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, directory / "checkout", symlinks=True, ignore=not_source)
    return build("build_sdist", directory / "checkout", directory / "sdist")


@pytest.fixture(scope="module")
def wheel(sdist):
    """Built from the checkout, as ``pip install .`` does."""
    return build("build_wheel", sdist.parents[1] / "checkout", sdist.parents[1] / "wheel")


@pytest.fixture(scope="module")
def bert_tf(wheel, tmp_path_factory):
    """Runs bert-tf in an environment that has the wheel and the packages of this one."""
    directory = tmp_path_factory.mktemp("environment")
    finish(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=directory)
    python = directory / "venv/bin/python"
    install = ["--python", python, "install", "--no-deps", "--no-index", wheel]
    finish(sys.executable, "-m", "pip", "--disable-pip-version-check", *install, cwd=directory)
    # Files there that end in .pth, as that of an editable installation, are not read.
    [site] = directory.glob("venv/lib/python3*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["XDG_CACHE_HOME"] = str(directory / "cache")

    def run(*arguments):
        return finish(python.with_name("bert-tf"), *arguments, cwd=directory, env=env)

    run.directory, run.site = directory, site
    return run


def contents(archive, prefix=""):
    """Name -> bytes of the files of a wheel, without the list of their hashes."""
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if not name.endswith("RECORD")]
        return {name: opened.read(name) for name in names}


@pytest.mark.slow
def test_a_wheel_built_from_the_sdist_is_the_one_built_from_the_checkout(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as opened:
        opened.extractall(tmp_path)
    [unpacked] = tmp_path.iterdir()
    rebuilt = contents(build("build_wheel", unpacked, tmp_path / "wheel"))
    built = contents(wheel)
    assert sorted(rebuilt) == sorted(built)
    assert rebuilt == built


def test_what_a_wheel_holds(wheel):
    names = set(contents(wheel))
    for path in [*ROOT.glob("bert_tf/**/*.py"), *ROOT.glob("data_prep/**/*.py")]:
        assert str(path.relative_to(ROOT)) in names
    recipes = [*ROOT.glob("recipes/*.flags"), *ROOT.glob("recipes/*.json")]
    assert {f"bert_tf/recipes/{path.name}" for path in recipes} <= names
    assert {f"bert_tf/native/{path.name}" for path in ROOT.glob("bert_tf/native/*.cc")} <= names
    assert "bert_tf/py.typed" in names
    assert {name.rsplit("/")[-1] for name in names} >= {"LICENSE", "LICENSES.md"}
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"bert_tf", "data_prep"}
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_what_an_sdist_holds(sdist):
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {
        "LICENSE",
        "Makefile",
        "run_squad.py",
        "tests/helpers/programs.py",
        "docs/howto/data.md",
    } <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@pytest.mark.exhaustive
def test_commands_of_the_wheel(bert_tf):
    """From text to a trained model, in a directory that is no checkout."""
    assert "\n  pretrain " in bert_tf()
    assert bert_tf("pretrain", "--help").startswith("bert-tf pretrain: Pre-trains BERT")
    recipe = bert_tf("recipe", "bert_tiny.json").strip()
    assert Path(recipe) == bert_tf.site / "bert_tf/recipes/bert_tiny.json"
    text = "".join(TEXT.format(i) + "\n" * (i % 5 == 0) for i in range(60))
    (bert_tf.directory / "text.txt").write_text(text)
    bert_tf("data", "pipeline", "--input_file=text.txt", "--output_dir=data", "--vocab_size=80")
    shown = bert_tf(
        *("pretrain", "--bert_config_file=recipes/bert_tiny.json", "--do_train"),
        *("--input_file=data/records/train", "--output_dir=model", "--train_batch_size=2"),
        *("--num_train_steps=2", "--num_warmup_steps=0", "--native_ops=false"),
        "--precision=fp32",
    )
    assert "step 2/2" in shown
    record = json.loads((bert_tf.directory / "model/run.json").read_text())
    assert record["command"][:2] == [
        "bert-tf pretrain",
        "--bert_config_file=recipes/bert_tiny.json",
    ]
    assert Path(record["flags"]["bert_config_file"]) == Path(recipe)
