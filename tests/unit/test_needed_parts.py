"""Tests that cannot run are skipped, and fail where the caller has asked for what they need."""

import os
import re
import subprocess
import sys

import pytest

from tests.helpers import programs
from tests.helpers.programs import ROOT, environment

MAKE_VARIABLES = {"ALL", "BROWSER", "EXHAUSTIVE", "HOROVOD", "HOSTS", "MARK", "NEEDED"}
MAKE_VARIABLES |= {"TENSORFLOW", "VENV"}
PARTS = ("native_ops", "horovod", "browser", "hosts")


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ([], None),
        (["ALL=1"], "native_ops horovod"),
        (["ALL=1", "HOROVOD=0"], "native_ops"),
        (["EXHAUSTIVE=1"], "native_ops horovod"),
        (["BROWSER=1"], "browser"),
        (["HOSTS=1", "HOROVOD=0"], "hosts"),
        (["ALL=1", "BROWSER=1", "HOSTS=1"], "native_ops horovod browser hosts"),
        (["ALL=1", "HOSTS=1", "NEEDED=native_ops"], "native_ops"),
    ],
)
def test_make_says_what_is_needed(given, needed):
    found = re.match('BERT_TF_TESTS_NEED="(.*?)" ', pytest_line(given))
    assert (found and found[1]) == needed
    assert needed is None or set(needed.split()) <= set(PARTS)


@pytest.mark.parametrize(
    ("given", "marks"),
    [
        ([], "not slow and not exhaustive"),
        (["ALL=1"], "not exhaustive"),
        (["EXHAUSTIVE=1"], None),
        (["ALL=1", "MARK=each_tensorflow"], "each_tensorflow"),
    ],
)
def test_make_chooses_tests_by_their_markers(given, marks):
    found = re.search('-m "(.*?)"', pytest_line(given))
    assert (found and found[1]) == marks


def pytest_line(given):
    """The command by which ``make test`` starts the tests."""
    # Not what the make that runs these tests was given: it passes that on.
    variables = {
        name: value
        for name, value in environment().items()
        if not name.startswith("MAKE") and name not in MAKE_VARIABLES
    }
    printed = subprocess.run(
        ["make", "--dry-run", "test", *given],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    [line] = [line for line in printed.splitlines() if " -m pytest " in line]
    return line


@pytest.mark.parametrize("part", PARTS)
def test_what_is_needed_is_not_skipped(monkeypatch, part):
    monkeypatch.setattr(programs, "NEEDED", [])
    with pytest.raises(pytest.skip.Exception, match="it is not here"):
        programs.skip_without(part, "it is not here")
    monkeypatch.setattr(programs, "NEEDED", ["another", part])
    with pytest.raises(pytest.fail.Exception, match=f"^{part} should be installed: it is not here"):
        programs.skip_without(part, "it is not here")


@pytest.mark.slow
def test_without_a_browser_and_without_hosts(tmp_path):
    """No program of theirs is on the PATH."""
    tests = [
        "tests/end_to_end/test_report_in_browser.py::test_search",
        "tests/hosts/test_hosts.py::test_two_sets_of_hosts_know_nothing_of_each_other",
    ]
    options = ("-q", "-n0", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'of'}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env={**environment(), "PATH": str(tmp_path), "BERT_TF_TESTS_NEED": "browser hosts"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.match(r"\d+ errors in ", done.stdout.splitlines()[-1]), done.stdout
    no_hosts = "root" if os.geteuid() else "the program 'ip' was not found"
    for reason in ("no chromium or no chromedriver on PATH", no_hosts):
        assert reason in done.stdout
