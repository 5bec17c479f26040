"""Who may read what is written."""

import os

import pytest

from bert_tf.checkpoint.formats import ORIGINS, open_source
from bert_tf.commands.convert import convert
from tests.helpers.files import modes_of
from tests.helpers.small_span_model import write_model


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_source(write_model(tmp_path_factory.mktemp("source") / "model"))


@pytest.mark.parametrize("target", ORIGINS)
def test_the_umask_decides_who_may_read_a_model(source, tmp_path, target):
    before = os.umask(0o027)
    try:
        convert(source, tmp_path / "out", target)
    finally:
        os.umask(before)
    assert modes_of(tmp_path / "out") == {"file": {0o640}, "directory": {0o750}}
