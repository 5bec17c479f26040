"""The commands of bert-tf: all are listed, found and described, without TensorFlow."""

import importlib
import shlex
import sys

import pytest

from bert_tf.commands import main as bert_tf_command
from bert_tf.commands.main import COMMANDS, about, find_command, list_of_commands
from bert_tf.commands.scripts import SCRIPTS
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT, run

# Runs bert-tf as its console script does, and says at its end whether TensorFlow was loaded.
PROGRAM = """
import atexit, sys
from bert_tf.commands.main import run
atexit.register(lambda: print("\\nloaded:", "tensorflow" in sys.modules))
sys.argv = sys.argv[1:]
run()
"""
SUMMARIES = {name: about(name).partition("\n")[0] for name in COMMANDS}
ALIKE = [name for name in COMMANDS if name.startswith("data ") and name != "data pipeline"]


def bert_tf(line, program="/usr/bin/bert-tf"):
    done = run("-c", PROGRAM, program, *shlex.split(line), check=False)
    text, _, loaded = done.stdout.rpartition("\nloaded: ")
    assert loaded == "False\n"
    return done.returncode, text.rstrip("\n"), done.stderr


@pytest.mark.parametrize("line", ["", "--help", "-h", "help"])
def test_the_list(line):
    status, text, _ = bert_tf(line)
    assert status == 0
    for name, summary in SUMMARIES.items():
        assert f"\n  {name} " in text
        assert " ".join(summary.split()) in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_data_alone_lists_its_commands():
    status, text, _ = bert_tf("data")
    assert status == 0
    shown = [line.split()[:2] for line in text.splitlines() if line.startswith("  data ")]
    assert [" ".join(words) for words in shown] == [n for n in COMMANDS if n.startswith("data ")]
    assert "pretrain " not in text
    assert bert_tf("data --help")[1] == text


def test_every_program_of_the_package_is_a_command():
    programs = set()
    for path in [*ROOT.glob("bert_tf/**/*.py"), *ROOT.glob("data_prep/*.py")]:
        if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8"):
            programs.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert programs - {str(entry).partition(":")[0] for entry in COMMANDS.values()} == {
        "bert_tf.commands.main",
    }


@pytest.mark.parametrize(
    "name",
    [
        # Data preparation commands build their help the same way: one of them shows it.
        pytest.param(name, marks=pytest.mark.exhaustive if name in ALIKE else [])
        for name in COMMANDS
    ],
)
def test_the_help_of_a_command(name):
    status, text, errors = bert_tf(f"{name} --help")
    assert (status, errors) == (0, "")
    assert text.startswith(f"bert-tf {name}: {SUMMARIES[name]}\n")
    assert "--flagfile:" in text
    assert "python -m bert_tf" not in text
    assert "python -m data_prep" not in text


def test_the_function_of_a_command_runs_it(capsys, monkeypatch):
    """As a program of its own, with the rest of the command line."""
    given = {}
    module = importlib.import_module("bert_tf.commands.convert")
    monkeypatch.setattr(module, "run", lambda: given.update(argv=list(sys.argv)))
    monkeypatch.setattr(sys, "argv", ["/bin/bert-tf", "convert", "--input=a", "b"])
    monkeypatch.setattr(sys.modules["__main__"], "__doc__", None)
    bert_tf_command.run()
    assert given["argv"] == ["bert-tf convert", "--input=a", "b"]
    assert sys.modules["__main__"].__doc__.startswith("bert-tf convert: Converts between")


@pytest.mark.parametrize(
    ("line", "name", "rest"),
    [
        ("squad --do_train", "squad", ["--do_train"]),
        ("data pipeline a b", "data pipeline", ["a", "b"]),
        ("data create_pretraining_data", "data create-pretraining-data", []),
        ("squad_metrics --help", "squad-metrics", ["--help"]),
        ("classify --help", "classifier", ["--help"]),
        ("data inspect dir", "inspect", ["dir"]),
        ("inspect data", "inspect", ["data"]),
    ],
)
def test_finding_a_command(line, name, rest):
    assert find_command(line.split()) == (name, rest)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "pretain --do_train",
            "'pretain' is not a command of bert-tf; did you mean 'pretrain'",
        ),
        ("data pipelines", "'data pipelines' is not a .*; did you mean 'data pipeline'"),
        ("squadmetrics", "did you mean 'squad-metrics'"),
        ("--do_train", "'--do_train' is not a command of bert-tf; 'bert-tf' lists them"),
        ("x", "'x' is not a command of bert-tf; 'bert-tf' lists them"),
    ],
)
def test_an_unknown_command(line, sentence):
    with pytest.raises(UserError, match=sentence):
        find_command(line.split())


def test_a_mistake_is_one_line():
    status, text, errors = bert_tf("pretain")
    assert (status, text) == (2, "")
    assert errors.startswith("error: 'pretain' is not a command")
    assert errors.count("\n") == 1
    assert bert_tf("pretrain --no_such_flag")[2].startswith("error: --no_such_flag is not a flag")


@pytest.mark.parametrize(
    ("script", "name"), [("bert-tf-squad", "squad"), ("bert-tf-classify", "classifier")]
)
def test_scripts_of_older_names(script, name):
    status, text, _ = bert_tf("--help", program=f"/usr/bin/{script}")
    assert status == 0
    assert text.startswith(f"bert-tf {name}: ")


def test_the_version():
    import bert_tf as package

    assert bert_tf("--version")[1] == f"bert_tf {package.__version__}"


def test_scripts_of_a_checkout_describe_themselves_as_their_commands_do():
    assert {path.name for path in ROOT.glob("run_*.py")} == {row.file for row in SCRIPTS.values()}
    for name, row in SCRIPTS.items():
        text = (ROOT / row.file).read_text(encoding="utf-8")
        assert text.startswith(f'"""{SUMMARIES[name]}"""')
        assert f'SCRIPTS["{name}"].run()' in text


def test_a_list_of_some_commands():
    assert not [line for line in list_of_commands("no such") if line.startswith("  ")]
