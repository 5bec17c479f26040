"""The benchmark of SQuAD features: a tiny run without peers, figures put together right."""

from __future__ import annotations

import json

import pytest

from tests.support import run


@pytest.fixture
def files(tmp_path):
    context = "the red barn stands on the hill"
    questions = [
        {"id": f"q{n}", "question": "where ?", "answers": [{"text": "hill", "answer_start": 27}]}
        for n in range(3)
    ]
    data = [{"paragraphs": [{"context": context, "qas": questions}]}]
    (tmp_path / "squad.json").write_text(json.dumps({"data": data}))
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the red barn stands"
    (tmp_path / "vocab.txt").write_text(words.replace(" ", "\n"))
    return [f"--data_file={tmp_path}/squad.json", f"--vocab_file={tmp_path}/vocab.txt"]


def _run(*given, **options):
    # Its workers are processes of their own, which load the program anew.
    return run("-m", "benchmarks.squad_features", "--retries=0", *given, **options, fresh=True)


def test_results_are_printed_and_written(files, tmp_path):
    done = _run(*files, "--subjects=ours", "--turns=2", f"--json={tmp_path}/results.json")
    (ours,) = json.loads((tmp_path / "results.json").read_text())
    assert set(ours) == {"name", "subject", "value", "unit", "config"}
    assert (ours["subject"], ours["unit"]) == ("ours", "features/s")
    assert (ours["config"]["questions"], ours["config"]["features"]) == (3, 3)
    assert ours["config"]["max_seq_length"] == 384
    assert len(ours["config"]["turns"]) == 2
    assert f"{ours['value']:.4g}" in done.stdout


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--google_bert_dir=none", "error: --google_bert_dir: none/tokenization.py does not exist"),
        ("--max_seq_length=9", "error: --max_seq_length=9 leaves no room"),
    ],
)
def test_bad_input_ends_in_one_sentence(files, flag, expected):
    done = _run(*files, flag, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(expected)
    assert done.stderr.count("\n") == 1


FAKE = {
    "run_squad.py": """
import json
import tensorflow as tf
tf.flags.DEFINE_bool("version_2_with_negative", None, "")
FLAGS = tf.flags.FLAGS
def read_squad_examples(path, is_training):
    assert is_training and FLAGS.version_2_with_negative is True
    with tf.gfile.GFile(path) as file:
        return json.load(file)["data"][0]["paragraphs"][0]["qas"]
def convert_examples_to_features(examples, tokenizer, max_seq_length, doc_stride,
                                 max_query_length, is_training, output_fn):
    assert (max_seq_length, doc_stride, max_query_length) == (64, 16, 8) and is_training
    for example in examples * tokenizer:
        output_fn(example)
""",
    "tokenization.py": """
import tensorflow
def FullTokenizer(vocab_file, do_lower_case):
    assert vocab_file.endswith("vocab.txt") and do_lower_case is False
    return 2
""",
}


@pytest.mark.slow
def test_the_peers_code_gets_the_same_settings(files, tmp_path):
    for name, text in FAKE.items():
        (tmp_path / name).write_text(text)
    _run(
        *files, "--subjects=ours,google-bert", "--turns=1", "--max_seq_length=64",
        "--doc_stride=16", "--max_query_length=8",
        "--do_lower_case=false", "--version_2_with_negative", f"--google_bert_dir={tmp_path}",
        f"--json={tmp_path}/results.json",
    )  # fmt: skip
    ours, google, ratio = json.loads((tmp_path / "results.json").read_text())
    assert (google["subject"], google["config"]["features"]) == ("google-bert", 6)
    assert (ours["config"]["features"], ratio["subject"]) == (3, "ours")
