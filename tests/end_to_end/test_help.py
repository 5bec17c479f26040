"""Help, and what is said of wrong flags, must not wait for TensorFlow."""

import pytest

from tests.support import run

# Runs a script as a user would, and says at its end what it has loaded.
PROGRAM = """
import atexit, runpy, sys
sys.argv = sys.argv[1:]
slow = {"tensorflow", "horovod", "numpy"}
atexit.register(lambda: print("loaded:", sorted(slow & set(sys.modules))))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SCRIPTS = ["run_pretraining.py", "run_squad.py", "run_classifier.py", "run_distillation.py"]


def last_words(*command):
    """What the program printed, how it ended, and what it had loaded by then."""
    done = run("-c", PROGRAM, *command, check=False, fresh=True)
    *text, loaded = done.stdout.splitlines()
    return "\n".join(text), done, loaded


@pytest.mark.parametrize("flag", ["--help", "--helpfull", "--helpshort"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script, flag):
    text, done, loaded = last_words(script, flag)
    assert done.returncode == 0
    for name in ("--bert_config_file", "--precision_policy", "--num_train_steps"):
        assert f"{name}:" in text
    assert loaded == "loaded: []"


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--no_such_flag"], "error: --no_such_flag is not a flag of this command"),
        (["--precision=fp8"], "fp8"),
        (["--do_train"], "error: --"),
        (["--output_dir=out", "--bert_config_file=nowhere.json", "--do_train"], "error: --"),
    ],
    ids=["unknown", "no choice", "required", "missing file"],
)
def test_wrong_flags(script, flags, sentence):
    _, done, loaded = last_words(script, *flags)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert loaded == "loaded: []"
