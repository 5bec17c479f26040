"""The reference has every flag of every command, and what its --help says of it."""

import re

import pytest

from tests.helpers.programs import ROOT, run
from tools import flag_reference, settings_reference

COMMANDS = flag_reference.commands()
# These take the flags of a training script, which are on that script's page.
OF_A_SCRIPT = {"bert_tf.commands.doctor"}


def test_every_command_has_a_page():
    names = {command.name for command in COMMANDS}
    assert {path.stem for path in ROOT.glob("run_*.py")} <= names
    assert {"data_prep.pipeline", "data_prep.inspect", "bert_tf.commands.ask"} <= names
    for path in (ROOT / "bert_tf/commands").glob("[a-z]*.py"):
        # Modules without flags of their own: an index of commands, or the code of run_*.py.
        if "from absl import flags" in path.read_text(encoding="utf-8"):
            assert f"bert_tf.commands.{path.stem}" in names


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_flag_is_on_the_page(command):
    page = flag_reference.page(command, flag_reference.flags_of(command))
    listed = set(re.findall(r"^`{3,}\{option\} --(\w+)", page, flags=re.MULTILINE))
    program = [command.target] if command.target.endswith(".py") else ["-m", command.target]
    text = run(*program, "--help").stdout
    flags = re.findall(r"^  --(?:\[no\])?(\w+):", text, flags=re.MULTILINE)
    if command.name in OF_A_SCRIPT:
        assert {"script", "num_ranks"} <= listed <= set(flags)
        assert "every flag of the training script" in page
    else:
        assert listed == set(flags)


def test_a_page_has_what_the_definitions_say():
    [command] = [command for command in COMMANDS if command.name == "run_pretraining"]
    page = flag_reference.page(command, flag_reference.flags_of(command))
    options = {
        name: block
        for block in page.split("````{option} ")
        for name in re.findall(r"\A--(\w+)", block)
    }
    assert "## Batch, schedule and optimizer" in page
    assert options["learning_rate"].startswith("--learning_rate <number>")
    assert "Default: `5e-05`." in options["learning_rate"]
    assert options["do_train"].startswith("--do_train, --nodo_train")
    assert "Must be at least 1." in options["save_checkpoints_steps"]
    assert re.search(r"One of `adam`, .*`muon`", options["optimizer_type"])
    assert "May differ between hosts." in options["init_checkpoint"]
    assert "Required." in options["output_dir"] or "No default." in options["output_dir"]


def test_text_of_help_is_not_taken_for_markdown():
    given = "a [MASK] for --output_dir=out, *.txt, ``code`` and a_b"
    expected = r"a \[MASK\] for `--output_dir=out`, \*.txt, ``code`` and a\_b"
    assert flag_reference.as_markdown(given) == expected


def test_settings_have_their_defaults_flags_and_bounds():
    page = settings_reference.page()
    for path in (ROOT / "bert_tf").rglob("*.py"):
        declared = r"^class (\w+)\((?:Settings|(?!Ramp)\w+Settings)\):"
        for name in re.findall(declared, path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            assert f"\n## {name}\n" in page, path
    [row] = [line for line in page.splitlines() if line.startswith("| `display_loss_steps`")]
    assert "| `10` | `--display_loss_steps` |" in row
    assert "Must be at least 1." in row


def test_the_site_is_built_without_tensorflow():
    program = (
        "import sys; from tools import settings_reference; settings_reference.page(); "
        "print('tensorflow' in sys.modules)"
    )
    assert run("-c", program, fresh=True).stdout == "False\n"


@pytest.mark.parametrize("program", [flag_reference, settings_reference])
def test_help_writes_nothing(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        program.main(["--help"])
    assert ended.value.code == 0
    assert program.__doc__.splitlines()[0] in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
