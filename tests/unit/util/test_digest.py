"""Digests are SHA-256."""

import hashlib
import os

from bert_tf.util.digest import digest_of, digest_of_file, digest_of_json


def test_several_blocks(tmp_path):
    content = os.urandom((1 << 20) * 2 + 17)
    (tmp_path / "f").write_bytes(content)
    assert digest_of_file(tmp_path / "f") == hashlib.sha256(content).hexdigest()
    assert digest_of(content[:5], content[5:]) == digest_of_file(tmp_path / "f")


def test_json_in_any_order():
    assert digest_of_json({"a": 1, "b": [None]}) == digest_of_json({"b": [None], "a": 1})
    assert digest_of_json({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()
    assert digest_of_json({"a": 1}) != digest_of_json({"a": 2})
