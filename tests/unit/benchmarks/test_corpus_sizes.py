"""Tests benchmarks.corpus_sizes, and the text and the measurement that it uses."""

import collections
import itertools
import json
import subprocess
import sys

import pytest

from benchmarks.generated_text import documents, word
from benchmarks.process_memory import run_measured
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT, environment


def test_generated_text_has_new_words_however_long_it_is():
    text = list(documents(8_000_000))
    assert 8_000_000 <= sum(map(len, text)) < 8_100_000
    half = len(text) // 2
    first, second = (
        collections.Counter(word for document in part for word in document.split())
        for part in (text[:half], text[half:])
    )
    assert len(set(second) - set(first)) > 10_000
    # The most frequent words are the same ones, as in any text.
    most = [{word for word, _ in counts.most_common(20)} for counts in (first, second)]
    assert len(most[0] & most[1]) >= 18
    assert 0.003 < 1 - len(set(text)) / len(text) < 0.02


def test_generated_words_differ():
    assert len(set(map(word, range(1, 20_000)))) == 19_999


def test_a_seed_gives_the_same_text():
    texts = [list(itertools.islice(documents(10**6, seed), 50)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


PROGRAM = """
import subprocess, sys
block = bytearray({main} << 20)
command = "block = bytearray({worker} << 20); [block.count(1) for _ in range(10)]"
subprocess.run([sys.executable, "-c", command], check=True)
"""


@pytest.mark.parametrize(("main", "worker"), [(100, 300), (300, 100)])
def test_the_peaks_of_a_program_and_of_its_child(main, worker):
    command = [sys.executable, "-c", PROGRAM.format(main=main, worker=worker)]
    peaks = run_measured(command)
    assert 0 <= (peaks.main >> 20) - main < 60
    assert 0 <= (peaks.worker >> 20) - worker < 60


def test_a_program_that_fails():
    with pytest.raises(UserError, match=r"failed \(3\): what it said"):
        run_measured([sys.executable, "-c", "print('what it said'); exit(3)"])


@pytest.mark.parametrize("source", ["text", "dump"])
def test_all_stages_are_measured(tmp_path, source):
    command = [sys.executable, "-m", "benchmarks.corpus_sizes", "--sizes_mb=1", "--num_workers=1"]
    command += [f"--source={source}", f"--directory={tmp_path}/work", "--vocab_size=1000"]
    command.append(f"--json={tmp_path}/results.json")
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    stages = dict.fromkeys(row["name"].split(":")[0] for row in found)
    expected = ["clean", "sentences", "shards", "vocabulary", "create_pretraining_data"]
    assert list(stages) == (["extract"] if source == "dump" else []) + expected
    assert all(row["value"] > 0 for row in found if row["name"].endswith(("rate", "output")))
    assert not any((tmp_path / "work").iterdir())
