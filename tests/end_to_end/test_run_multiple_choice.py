"""run_multiple_choice.py on a small network: train, score, choose, transformers."""

import json

import numpy as np
import pytest

from bert_tf.checkpoint.formats import open_source
from bert_tf.commands.convert import convert
from bert_tf.model_directory.classes import CHOICE
from bert_tf.serving.load import load_model
from tests.end_to_end.finetuning_runs import (
    assert_same_plan,
    flags_of_a_short_run,
    ledger_of,
    results_of,
)
from tests.helpers.choice_files import LENGTHS, write_data
from tests.helpers.model_records import classes_in
from tests.helpers.programs import run
from tests.helpers.squad_files import write_model

SCRIPT = "run_multiple_choice.py"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("choice")
    write_model(directory / "start")
    write_data(directory / "data")
    return directory


@pytest.fixture(scope="module")
def flags(files):
    """Flags of a short run from random weights; later ones win."""
    return [
        *flags_of_a_short_run(files),
        f"--data_dir={files / 'data'}",
        *LENGTHS,
        "--train_batch_size=16",
        "--num_train_epochs=8",
        "--learning_rate=4e-3",
        "--do_train",
        "--do_eval",
        "--do_predict",
        f"--predict_file={files / 'data' / 'dev.jsonl'}",
    ]


@pytest.fixture(scope="module")
def trained(flags, files):
    """A finished run that predicts the development set, and what it printed."""
    output_dir = files / "model"
    return output_dir, run(SCRIPT, *flags, f"--output_dir={output_dir}", "--deterministic")


def questions_in(files):
    lines = (files / "data" / "dev.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def predictions_of(directory):
    return [json.loads(line) for line in (directory / "predictions.jsonl").read_text().splitlines()]


def test_it_learns_and_scores_what_it_predicts(trained, files):
    output_dir, done = trained
    asked, found = questions_in(files), predictions_of(output_dir)
    for question, prediction in zip(asked, found):
        assert len(prediction["probabilities"]) == len(question["choices"])
        assert sum(prediction["probabilities"]) == pytest.approx(1)
        assert prediction["label"] == np.argmax(prediction["probabilities"])
        assert prediction["choice"] == question["choices"][prediction["label"]]
    results = results_of(output_dir)
    is_right = [p["label"] == q["label"] for p, q in zip(found, asked)]
    of_labels = [p["probabilities"][q["label"]] for p, q in zip(found, asked)]
    assert results["eval_accuracy"] == np.mean(is_right) > 0.9
    assert results["eval_loss"] == pytest.approx(-np.log(of_labels).mean())
    assert "Traceback" not in done.stderr
    assert f"are in {output_dir / 'predictions.jsonl'}" in done.stdout


def test_files_of_a_run(trained):
    output_dir, _ = trained
    for directory in (output_dir, output_dir / "best"):
        assert classes_in(directory).kind == CHOICE
    data = ledger_of(output_dir)["data"]
    assert (data["task"], data["train_records"]) == ("multiple choice", 160)


def test_transformers_loads_the_model_and_scores_the_same(trained, files, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    convert(open_source(trained[0]), tmp_path / "theirs", "huggingface")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["architectures"] == ["BertForMultipleChoice"]
    assert "problem_type" not in config
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert "pipeline_tag: multiple-choice" in card
    network = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "theirs").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    for question, prediction in list(zip(questions_in(files), predictions_of(trained[0])))[:5]:
        choices = [f"{question.get('question', '')} {text}".strip() for text in question["choices"]]
        pairs = [question["context"]] * len(choices), choices
        inputs = tokenizer(
            *pairs, truncation=True, max_length=20, padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            logits = network(**{name: value[None] for name, value in inputs.items()}).logits[0]
        expected = torch.softmax(logits, -1).numpy()
        np.testing.assert_allclose(prediction["probabilities"], expected, atol=1e-4)
    # Our programs take the same directory.
    found = load_model(tmp_path / "theirs", max_seq_length=20).predict(questions_in(files))
    assert [one.number for one in found] == [p["label"] for p in predictions_of(trained[0])]


@pytest.mark.slow
def test_micro_batches_learn_the_same(trained, flags, tmp_path):
    given = ["--train_batch_size=4", "--num_accumulation_steps=4", "--deterministic"]
    run(SCRIPT, *flags, *given, f"--output_dir={tmp_path}")
    assert_same_plan(trained[0], tmp_path)
    found, expected = (results_of(path)["eval_loss"] for path in (tmp_path, trained[0]))
    assert found == pytest.approx(expected, abs=2e-3)


@pytest.mark.exhaustive
def test_a_student_learns_from_a_teacher(trained, flags, tmp_path):
    """From its scores alone, with half as many layers."""
    flags = [flag for flag in flags if "bert_config_file" not in flag]
    taught = [f"--teacher_checkpoint={trained[0]}", "--alpha_label=0", "--alpha_ce=1"]
    run(SCRIPT, *flags, *taught, f"--output_dir={tmp_path}")
    assert results_of(tmp_path)["eval_accuracy"] > 0.8
