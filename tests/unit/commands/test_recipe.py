"""Recipes are found by their names, from any directory."""

import pytest
from absl import flags

from bert_tf.cli.flags import parse_flag_file, read_flag_files
from bert_tf.commands.recipe import find_recipe
from bert_tf.tasks.pretraining.flags import define_pretraining_flags
from bert_tf.util.errors import UserError
from bert_tf.util.recipes import RECIPES, with_recipe
from tests.helpers.programs import ROOT, run


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("bert_base_phase1", "bert_base_phase1.flags"),
        ("bert_base_phase1.flags", "bert_base_phase1.flags"),
        ("recipes/bert_base_phase1.flags", "bert_base_phase1.flags"),
        ("bert_base.json", "bert_base.json"),
    ],
)
def test_a_recipe_by_its_name(name, file):
    found = find_recipe(name)
    assert found == RECIPES / file
    assert found.samefile(ROOT / "recipes" / file)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bert_base_phase3", "'bert_base_phase3' is not a recipe; did you mean .*bert_base_phase1"),
        ("x", "'x' is not a recipe; 'bert-tf recipe' lists them"),
        ("Containerfile", "is not a recipe"),
        ("../setup.py", "is not a recipe"),
    ],
)
def test_an_unknown_recipe(name, sentence):
    with pytest.raises(UserError, match=sentence):
        find_recipe(name)


def test_the_command(tmp_path):
    listed = run("-m", "bert_tf.commands.recipe", cwd=tmp_path).stdout.splitlines()
    files = sorted(path.stem for path in (ROOT / "recipes").glob("*.flags"))
    assert [line.split()[0] for line in listed] == files
    done = run("-m", "bert_tf.commands.recipe", "distilbert", "squad_large", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        str(RECIPES / "distilbert.flags"),
        str(RECIPES / "squad_large.flags"),
    ]


def test_a_file_of_the_users_is_preferred(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert with_recipe("recipes/bert_tiny.json") == str(RECIPES / "bert_tiny.json")
    assert with_recipe("recipes/mine.json") == "recipes/mine.json"
    assert with_recipe("bert_tiny.json") == "bert_tiny.json"
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/bert_tiny.json").touch()
    assert with_recipe("recipes/bert_tiny.json") == "recipes/bert_tiny.json"


@pytest.mark.parametrize("form", [["--flagfile=PATH"], ["--flagfile", "PATH"], ["-flagfile=PATH"]])
def test_flags_of_a_recipe_that_names_another_one(tmp_path, monkeypatch, form):
    """As absl reads them where the files are."""
    given = [word.replace("PATH", "recipes/nvidia_compatible_adam.flags") for word in form]
    arguments = ["--a=1", *given, "--b=2"]
    monkeypatch.chdir(ROOT)
    here = read_flag_files(arguments, flags.FlagValues())
    assert len(here) > 4
    monkeypatch.chdir(tmp_path)
    assert read_flag_files(arguments, flags.FlagValues()) == here


def test_files_that_a_recipe_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = flags.FlagValues()
    define_pretraining_flags(values)
    named = parse_flag_file("recipes/bert_base_phase1.flags", values)
    assert "global_batch_size" in named
    assert values.bert_config_file == str(RECIPES / "bert_base.json")
