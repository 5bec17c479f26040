"""What holds for the tests of all rooms."""

import gc
import subprocess
import sys
import time

import pytest

# torch's package for GPUs brings triton, which crashes in a process that has TensorFlow 2.21; torch
# does without it where it cannot be imported.
sys.modules["triton"] = None


# Graphs have many objects, and most of those that are looked at again and again will stay.
gc.set_threshold(50_000, 20, 50)

_DEADLINE = pytest.StashKey[float]()


def pytest_addoption(parser):
    parser.addoption("--minutes", type=float, help="Skip the tests that would begin after these.")


def pytest_configure(config):
    minutes = config.getoption("minutes")
    if minutes is not None:
        config.stash[_DEADLINE] = time.monotonic() + 60 * minutes


def pytest_collection_modifyitems(config, items):
    """Where time is short, the commit decides which file is first, so that all get their turn."""
    if _DEADLINE not in config.stash:
        return
    git = ["git", "-C", str(config.rootpath), "rev-parse", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    files = list(dict.fromkeys(item.path for item in items))
    first = int(head or "0", 16) % max(1, len(files))
    turn = {path: number for number, path in enumerate(files[first:] + files[:first])}
    items.sort(key=lambda item: turn[item.path])


def pytest_runtest_setup(item):
    if time.monotonic() > item.config.stash.get(_DEADLINE, float("inf")):
        pytest.skip("no time left of --minutes")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Nothing is read from the user's cache directory, and nothing is left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def record_maker():
    """Writes small record files."""
    # Imported here: most tests need no TensorFlow.
    from tests.helpers.record_maker import RecordMaker

    return RecordMaker()
