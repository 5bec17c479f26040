from __future__ import annotations

import json

import pytest

from tests.helpers.programs import run

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat", "."]
DOCUMENT = "the cat sat on a mat .\na mat sat .\non the mat a cat sat .\n\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "text.txt").write_text(DOCUMENT * 20)
    return [f"--input_file={tmp_path}/text.txt", f"--vocab_file={tmp_path}/vocab.txt"]


@pytest.mark.slow
def test_whole_benchmark(files, tmp_path):
    done = run(
        "-m", "benchmarks.data_prep", *files, "--turns=1", "--retries=0",
        "--subjects=ours-1-worker,tokenizers", f"--json={tmp_path}/results.json",
    )  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())
    assert [r["subject"] for r in results] == ["ours-1-worker", "tokenizers", "ours-1-worker"]
    assert results[0]["config"]["text_bytes"] == 20 * len(DOCUMENT)
    assert {"cpu", "cpu_features", "cores"} <= set(results[0]["config"])
    ours, peer, ratio = (r["value"] for r in results)
    assert ours == pytest.approx(ratio * peer)
    assert "ours-1-worker to it" in done.stdout


@pytest.mark.slow
def test_parts_of_the_work(files):
    subjects = "limit-tokenizer,ours-sentences-1-worker,limit-splitter"
    flags = [f"--subjects={subjects}", "--turns=1", "--retries=0"]
    done = run("-m", "benchmarks.data_prep", *files, *flags)
    assert [line for line in done.stdout.splitlines() if line.startswith("limit-splitter: ")]


FAKE = """
import tensorflow as tf
for name in ("input_file", "output_file", "vocab_file"):
    tf.flags.DEFINE_string(name, None, "")
tf.flags.DEFINE_integer("max_seq_length", None, "")
tf.flags.DEFINE_integer("dupe_factor", None, "")
tf.flags.DEFINE_bool("do_lower_case", None, "")
FLAGS = tf.flags.FLAGS
def main(_):
    assert (FLAGS.max_seq_length, FLAGS.dupe_factor, FLAGS.do_lower_case) == (64, 3, True)
    with tf.gfile.GFile(FLAGS.input_file) as source, open(FLAGS.output_file, "w") as target:
        target.write(source.read())
"""


@pytest.mark.slow
def test_the_peers_script_gets_the_same_flags(files, tmp_path):
    (tmp_path / "create_pretraining_data.py").write_text(FAKE)
    (tmp_path / "tokenization.py").write_text("import tensorflow\n")
    done = run(
        "-m", "benchmarks.data_prep", *files, "--turns=1", "--retries=0",
        "--max_seq_length=64", "--dupe_factor=3", "--subjects=google-bert",
        f"--google_bert_dir={tmp_path}",
    )  # fmt: skip
    assert "\ngoogle-bert: " in done.stdout


def test_bad_flags_end_in_one_sentence(files):
    done = run("-m", "benchmarks.data_prep", *files, "--google_bert_dir=/none", check=False)
    assert done.returncode == 2
    expected = "error: --google_bert_dir: /none/tokenization.py does not exist"
    assert done.stderr.startswith(expected)
    assert done.stderr.count("\n") == 1
