"""What the commands share."""

from __future__ import annotations

import pytest

from bert_tf.errors import UserError
from data_prep.stage import find_text_files


def test_text_files_without_manifests_and_empty_ones(tmp_path):
    for name, content in (("b.txt", "b"), ("a.txt", "a"), ("none", ""), ("manifest.json", "{}")):
        (tmp_path / name).write_text(content)
    assert [path.name for path in find_text_files(str(tmp_path))] == ["a.txt", "b.txt"]
    with pytest.raises(UserError, match=r"--input_file: the files of .*none' are empty"):
        find_text_files(str(tmp_path / "none"))
    with pytest.raises(UserError, match="--input_file: no file matches"):
        find_text_files(str(tmp_path / "missing*"))
