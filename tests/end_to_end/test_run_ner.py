"""run_ner.py on a small network: train, score, predict, a teacher."""

import json
import shutil

import numpy as np
import pytest

from tests.end_to_end.finetuning_runs import (
    flags_of_a_short_run,
    ledger_of,
    results_of,
)
from tests.helpers.model_records import classes_in
from tests.helpers.programs import run
from tests.helpers.squad_files import write_model
from tests.helpers.tagging_files import LABELS, LENGTHS, write_data
from tests.helpers.tensors import variables_of

SCRIPT = "run_ner.py"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tagging")
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
        "--num_train_epochs=4",
        "--learning_rate=6e-3",
        "--save_checkpoints_steps=25",
    ]


@pytest.fixture(scope="module")
def predicts_dev(files):
    return ["--do_predict", f"--predict_file={files / 'data' / 'dev.txt'}"]


@pytest.fixture(scope="module")
def trained(flags, predicts_dev, files):
    """A finished run that predicts the development set, and what it printed."""
    output_dir = files / "model"
    does = ["--do_train", "--do_eval", *predicts_dev, "--eval_every_steps=25", "--deterministic"]
    done = run(SCRIPT, *flags, f"--output_dir={output_dir}", *does)
    return output_dir, done


def predictions_of(directory):
    return (directory / "predictions.txt").read_text().splitlines()


def rows_of(lines):
    return [line.split(" ") for line in lines if line]


def test_it_learns_and_scores_what_it_predicts(trained, files):
    output_dir, done = trained
    lines = predictions_of(output_dir)
    given = (files / "data" / "dev.txt").read_text().splitlines()
    rows = rows_of(lines)
    assert [row[:2] for row in rows] == rows_of(given)[1:], "without -DOCSTART-"
    # Blank lines stay where they are.
    assert [bool(line) for line in lines[1:]] == [bool(line) for line in given[1:]]
    results = results_of(output_dir)
    assert results["eval_accuracy"] == np.mean([row[1] == row[2] for row in rows])
    assert results["eval_f1"] > 0.9
    assert 0 < results["eval_loss"] < 0.3
    table = json.loads((output_dir / "eval_entities.json").read_text())
    assert list(table) == ["LOC", "PER"]
    correct, labelled, predicted = (
        sum(row[name] for row in table.values()) for name in ("correct", "labelled", "predicted")
    )
    assert labelled == sum(row[1].startswith("B-") for row in rows)
    assert results["eval_precision"] == correct / predicted
    assert results["eval_recall"] == correct / labelled
    assert "Traceback" not in done.stderr
    assert f"are in {output_dir / 'predictions.txt'}" in done.stdout


def test_files_of_a_run(trained):
    output_dir, _ = trained
    assert {path.name for path in output_dir.iterdir()} >= {
        *("predictions.txt", "eval_results.json", "eval_results.txt", "eval_entities.json"),
        *("run.json", "log.jsonl", "eval_log.jsonl", "bert_config.json", "vocab.txt", "best"),
    }
    for directory in (output_dir, output_dir / "best"):
        assert classes_in(directory).labels == tuple(LABELS)
    data = ledger_of(output_dir)["data"]
    assert data["task"] == "labels of words"
    assert data["train_records"] > 160, "some sentences are cut"
    evaluations = (output_dir / "eval_log.jsonl").read_text().splitlines()
    best = max(json.loads(line)["eval_f1"] for line in evaluations)
    assert results_of(output_dir / "best")["eval_f1"] == best


@pytest.mark.slow
def test_a_trained_directory_alone_predicts_the_test_set(trained, files, tmp_path):
    run(
        SCRIPT,
        f"--init_checkpoint={trained[0]}",
        f"--data_dir={files / 'data'}",
        *LENGTHS,
        "--precision=fp32",
        "--do_predict=true",
        f"--output_dir={tmp_path}",
    )
    lines = predictions_of(tmp_path)
    words = (files / "data" / "test.txt").read_text().splitlines()
    assert [line.split(" ")[0] for line in lines] == words
    assert {label for _, label in rows_of(lines)} >= {"B-PER", "B-LOC", "O"}
    assert not (tmp_path / "eval_results.json").exists()


def test_labels_of_a_resumed_run_do_not_change(trained, flags, files, tmp_path):
    directory = shutil.copytree(trained[0], tmp_path / "model")
    data = shutil.copytree(files / "data", tmp_path / "data")
    with (data / "train.txt").open("a") as file:
        file.write("\nRome B-TOWN\n")
    before = variables_of(directory)
    given = [*flags, f"--data_dir={data}", "--num_train_epochs=9", f"--output_dir={directory}"]
    done = run(SCRIPT, *given, "--do_train", check=False)
    assert done.returncode == 2
    assert f"{data}/train.txt has the label 'B-TOWN', which the model does not" in done.stderr
    assert variables_of(directory).keys() == before.keys()


@pytest.mark.exhaustive
def test_a_student_learns_from_a_teacher(trained, flags, tmp_path):
    """From its labels alone, with half as many layers and none of the file's labels."""
    done = run(
        SCRIPT,
        *(flag for flag in flags if "bert_config_file" not in flag),
        f"--teacher_checkpoint={trained[0]}",
        "--alpha_label=0",
        "--alpha_ce=1",
        "--do_train",
        "--do_eval",
        f"--output_dir={tmp_path}",
    )
    assert "the student starts from layers 0 of its teacher's 2" in done.stdout
    assert results_of(tmp_path)["eval_f1"] > 0.9
    assert ledger_of(tmp_path)["distillation"]["alpha_label"] == 0
    assert not [name for name in variables_of(tmp_path) if "layer_1" in name]


@pytest.mark.exhaustive
def test_parts_of_speech_have_an_accuracy_only(flags, files, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "dev"):
        text = (files / "data" / f"{split}.txt").read_text()
        for label, part in {"B-PER": "NN", "I-PER": "NNP", "B-LOC": "NNS", "I-LOC": "FW"}.items():
            text = text.replace(label, part)
        (data / f"{split}.tsv").write_text(text.replace(" ", "\t"))
    does = ["--do_train", "--do_eval", "--num_train_steps=2", f"--output_dir={tmp_path / 'out'}"]
    run(SCRIPT, *flags, f"--data_dir={data}", *does)
    results = results_of(tmp_path / "out")
    assert {"eval_accuracy", "eval_loss"} <= results.keys()
    assert not {"eval_f1", "eval_precision", "eval_recall"} & results.keys()
    assert not (tmp_path / "out" / "eval_entities.json").exists()
