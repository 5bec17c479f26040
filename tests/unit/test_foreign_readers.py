"""Damaged files of every kind that is read: a result, or one sentence."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

from tests.helpers.foreign_readers import READERS, check, mutations

_CASES = 200


@pytest.mark.parametrize("kind", READERS)
def test_damaged_files(tmp_path, kind):
    reader = READERS[kind]
    seeds = reader.seeds(tmp_path)
    path = tmp_path / reader.name
    for seed in seeds:
        check(reader, path, seed)
    random = np.random.default_rng(zlib.crc32(kind.encode()))
    for content in itertools.islice(mutations(seeds, random), _CASES):
        check(reader, path, content)
