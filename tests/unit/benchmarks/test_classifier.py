"""Both programs of the comparison of classifiers give the same labels and probabilities."""

import json

import pytest

from benchmarks.classifier import PROGRAMS, ClassifierJob
from tests.helpers.programs import run
from tests.helpers.small_span_model import TEXT, VOCABULARY

TEXTS = ("who wrote the book ?", "anna", TEXT)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("classifier")
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,
        id2label={0: "good", 1: "bad", 2: "neither"},
    )
    transformers.set_seed(1)
    transformers.BertForSequenceClassification(config).save_pretrained(path)
    (path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in VOCABULARY))
    return path


@pytest.mark.exhaustive
def test_they_agree(model_dir):
    job = ClassifierJob(str(model_dir), TEXTS, max_seq_length=16, batch_sizes=(2,), threads=1)
    ours = PROGRAMS["ours"](job, {"precision": "fp32"})(TEXTS)
    theirs = PROGRAMS["transformers"](job, {})(TEXTS)
    assert [label for label, _ in ours] == [label for label, _ in theirs]
    assert [p for _, p in ours] == pytest.approx([p for _, p in theirs], abs=1e-5)


@pytest.mark.exhaustive
def test_a_whole_run(model_dir, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS * 3))
    flags = ["--batch_sizes=1,2", "--turns=1", "--retries=0", "--threads=1", "--seq_length=16"]
    files = [f"--model_dir={model_dir}", f"--input_file={tmp_path / 'texts.txt'}"]
    output = tmp_path / "results.json"
    subjects = "--subjects=ours,transformers"
    run("-m", "benchmarks.classifier", *flags, *files, subjects, f"--json={output}")
    names = {result["name"] for result in json.loads(output.read_text())}
    assert {"batch of 1", "batch of 2, p99", "batch of 1, ours to transformers"} <= names
