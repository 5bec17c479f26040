"""Small real data, made once by the real pipeline."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.small_pretraining import (
    flags_of_a_short_run,
    shared_data,
    write_bert_config,
)

COMPILER = os.environ.get("CXX") or "g++"


@pytest.fixture(scope="session")
def killer(tmp_path_factory):
    """A library that kills the program into which it is loaded."""
    if shutil.which(COMPILER) is None:
        pytest.skip("there is no compiler")
    library = tmp_path_factory.mktemp("killer") / "kill_at.so"
    source = Path(__file__).with_name("kill_at.c")
    command = [COMPILER, "-x", "c", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A data directory with stored masks."""
    return shared_data(tmp_path_factory, 200_000)


@pytest.fixture(scope="session")
def text_file(data):
    return data.with_name("my_text.txt")


@pytest.fixture(scope="session")
def bert_config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "bert_config.json"
    write_bert_config(path)
    return path


@pytest.fixture(scope="session")
def flags(data, bert_config):
    """Flags of a short run; later ones win."""
    return flags_of_a_short_run(data, bert_config)
