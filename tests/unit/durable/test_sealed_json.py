"""No flipped bit of a sealed file passes as another value."""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.durable import sealed_json
from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.util.errors import UserError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    max_leaves=10,
)
CONTENT = {"step": 18, "rate_factor": 0.5, "text": "ü", "inside": {"2": [1.5, None], "1": True}}


def read(path):
    return read_sealed_json(path, what="record", advice="delete it")


@settings(max_examples=30)
@given(st.dictionaries(st.text(), VALUES))
def test_what_is_written_is_read(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "sealed.json"
    content.pop(sealed_json.SEAL, None)
    write_sealed_json(path, content)
    assert read(path) == json.loads(json.dumps(content), parse_constant=lambda _: None)


def test_a_flipped_bit_changes_nothing_unnoticed(tmp_path, capsys):
    path = tmp_path / "record.json"
    write_sealed_json(path, CONTENT)
    intact = path.read_bytes()
    sentences = set()
    for bit in range(8 * len(intact)):
        flipped = bytearray(intact)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = read(path)
        except UserError as error:
            sentences.add(re.sub(r" \(.*\)", "", str(error)))
        else:  # white space
            assert found == CONTENT
    assert len(sentences) > 1
    assert all(re.fullmatch(rf"record: {path} [^;]+; delete it\.", s) for s in sentences)


def test_a_file_without_a_digest_is_refused(tmp_path):
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(UserError, match=r"record.json has no content_sha256; delete it\.$"):
        read(tmp_path / "record.json")


def test_keys_tuples_and_infinities_are_sealed_as_they_are_read(tmp_path):
    write_sealed_json(tmp_path / "record.json", {"by_step": {10: (1, 2), 9: math.inf}})
    assert read(tmp_path / "record.json") == {"by_step": {"10": [1, 2], "9": None}}


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "record.json").write_text("[1]")
    with pytest.raises(UserError, match=r"record.json is not a JSON object; delete it\.$"):
        read(tmp_path / "record.json")
