"""What holds for the tests of all rooms."""

import sys

import pytest

# torch's package for GPUs brings triton, which crashes in a process that has TensorFlow 2.21; torch
# does without it where it cannot be imported.
sys.modules["triton"] = None


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
    from tests.record_maker import RecordMaker

    return RecordMaker()
