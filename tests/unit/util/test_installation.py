"""A program without the packages that it needs says so in one line."""

import subprocess
import sys

import pytest

from tests.helpers.programs import ROOT, environment

# Stands in for an interpreter outside of the environment.
WITHOUT = """
import runpy, sys
sys.path[:] = [path for path in sys.path if "-packages" not in path]
sys.argv = sys.argv[1:]
sys.path.insert(0, {root!r})
if sys.argv[0].endswith(".py"):
    runpy.run_path({root!r} + "/" + sys.argv[0], run_name="__main__")
else:
    runpy.run_module(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("program", ["run_squad.py", "bert_tf.commands.ask", "data_prep.sentences"])
def test_outside_of_the_environment(program):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(root=str(ROOT)), program, "--help"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: absl is not installed for {sys.executable}; use the ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout
