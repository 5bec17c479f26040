"""One model has one answer: every command reads what decides predictions from its directory."""

import csv
import json
import shutil

import numpy as np
import pytest

from bert_tf.model_directory.record import read_record
from bert_tf.serving.load import load_model
from tests.end_to_end.finetuning_runs import flags_of_a_short_run, results_of
from tests.helpers.model_records import classes_in
from tests.helpers.programs import run
from tests.helpers.squad_files import LENGTHS, NAMES, PLACES, write_model, write_squad

pytestmark = pytest.mark.slow

LABELS = ["north;old", "old", "", "north", "old;north", "new", "new;north", "old"]
TEXTS = [
    f"{name} lives in {place}" + " , and works in the old town every year" * (number % 4)
    for number, (name, place) in enumerate(zip(NAMES, PLACES))
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("one")
    write_model(directory / "start")
    for name, labels in (("dev", LABELS), ("test", [*LABELS[3:], *LABELS[:3]])):
        with open(directory / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([["review", "topics"], *zip(TEXTS, labels)])
    write_squad(directory / "train2.json", 16, seed=3, unanswerable=True)
    write_squad(directory / "dev2.json", 6, seed=4, unanswerable=True)
    return directory


@pytest.fixture(scope="module")
def classifier(files):
    """A model of several classes for long texts; its predictions, and what the run printed."""
    told = ["--multi_label", "--text_column=review", "--label_column=topics", "--max_seq_length=16",
            "--label_separator=;", "--long_texts=windows", "--doc_stride=5"]  # fmt: skip
    given = [f"--train_file={files}/dev.csv", f"--eval_file={files}/dev.csv",
             f"--predict_file={files}/dev.csv", "--do_train", "--do_eval", "--do_predict",
             "--num_train_epochs=2", "--train_batch_size=4", "--learning_rate=3e-2"]  # fmt: skip
    usual = [*flags_of_a_short_run(files), "--precision=bf16"]
    run("run_classifier.py", *usual, *told, *given, f"--output_dir={files}/model")
    return files / "model"


def evaluated(model, tmp_path, *flags, file="dev", action="eval", files):
    """Another run on a copy of a finished model, without the flags of its training."""
    copy = tmp_path / "model"
    if not copy.exists():
        shutil.copytree(model, copy)
    given = [f"--{action}_file={files}/{file}.csv", f"--do_{action}", *flags]
    return copy, run("run_classifier.py", *given, f"--output_dir={copy}", check=False)


def written(directory, name):
    return (directory / name).read_text()


def test_predictions_without_the_flags_of_the_training(classifier, files, tmp_path):
    before = {name: written(classifier, name) for name in ("predictions.csv", "test_results.tsv")}
    copy, done = evaluated(classifier, tmp_path, action="predict", files=files)
    assert done.returncode == 0, done.stderr
    assert {name: written(copy, name) for name in before} == before
    for part in ("--long_texts=windows", "--multi_label=true", "--text_column=review"):
        assert part in done.stdout
    found = load_model(copy).predict(TEXTS)
    numbers = np.loadtxt(copy / "test_results.tsv", ndmin=2)
    probabilities = [list(one.probabilities.values()) for one in found]
    np.testing.assert_allclose(probabilities, numbers, atol=1e-6)
    rows = list(csv.DictReader(written(copy, "predictions.csv").splitlines()))
    assert [";".join(one.labels) for one in found] == [row["prediction"] for row in rows]


def test_a_flag_that_differs_says_so(classifier, files, tmp_path):
    _, done = evaluated(
        classifier, tmp_path, "--long_texts=head", "--precision=fp32", action="predict", files=files
    )
    assert "--long_texts=head, but the model was trained with windows" in done.stdout
    assert "--precision=fp32, but the model was trained with bf16" in done.stdout


def test_a_threshold_is_chosen_on_the_development_file_only(classifier, files, tmp_path):
    before = classes_in(classifier)
    assert set(before.thresholds) == {results_of(classifier)["eval_threshold"]}
    copy, done = evaluated(classifier, tmp_path, file="test", files=files)
    assert done.returncode == 0, done.stderr
    assert classes_in(copy) == before
    on_test = results_of(copy)
    assert on_test["eval_threshold"] == before.thresholds[0]
    evaluated(classifier, tmp_path, "--tune_threshold", file="test", files=files)
    tuned = classes_in(copy)
    assert tuned.thresholds != before.thresholds
    assert results_of(copy)["eval_micro_f1"] >= on_test["eval_micro_f1"]
    evaluated(classifier, tmp_path, "--threshold=old=0.9,north=0.1", file="test", files=files)
    by_name = dict(zip(before.labels, classes_in(copy).thresholds))
    assert by_name == {"new": tuned.thresholds[0], "north": 0.1, "old": 0.9}
    expected = [";".join(one.labels) for one in load_model(copy).predict(TEXTS)]
    evaluated(classifier, tmp_path, action="predict", files=files)
    rows = csv.DictReader(written(copy, "predictions.csv").splitlines())
    assert [row["prediction"] for row in rows] == expected


def test_impossible_thresholds(classifier, files, tmp_path):
    for flag, sentence in (
        ("--threshold=x=0.5", "--threshold names 'x', which is not one of the classes: new, north"),
        ("--threshold=2", "--threshold=2 must be a probability such as 0.4"),
        ("--threshold=0.1,old=0.2", "must be a probability such as 0.4, or one for each of some"),
    ):
        _, done = evaluated(classifier, tmp_path, flag, files=files)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert sentence in done.stderr


def test_the_best_checkpoint_is_that_of_one_file(classifier, files, tmp_path):
    """An evaluation of a finished model on another file leaves best/ as it is."""
    copy, _ = evaluated(classifier, tmp_path, "--keep_best", "--tune_threshold", files=files)
    assert read_record(copy / "best").chosen_on == read_record(copy).chosen_on
    before = written(copy / "best", "eval_results.json")
    _, done = evaluated(classifier, tmp_path, "--keep_best", file="test", files=files)
    assert f"{copy}/best was chosen on other data and stays" in done.stdout
    assert written(copy / "best", "eval_results.json") == before


def test_the_null_threshold_is_stored(files, tmp_path):
    model = files / "squad"
    usual = [*flags_of_a_short_run(files), f"--features_dir={model}_features", *LENGTHS,
             "--train_batch_size=8", "--learning_rate=4e-3",
             "--num_train_epochs=1", f"--train_file={files}/train2.json"]  # fmt: skip
    version_2 = ["--version_2_with_negative", "--do_train"]
    asked = [f"--predict_file={files}/dev2.json", "--do_predict"]
    run("run_squad.py", *usual, *version_2, *asked, f"--output_dir={model}")
    assert read_record(model).settings["null_score_diff_threshold"] == 0.0

    def predict(*flags):
        done = run("run_squad.py", *asked, *flags, f"--output_dir={model}")
        return json.loads((model / "predictions.json").read_text()), done.stdout

    first = results_of(model)
    tuned, _ = predict("--tune_threshold")
    assert results_of(model)["f1"] >= first["f1"]
    assert results_of(model)["f1"] == pytest.approx(results_of(model)["best_f1"])
    again, said = predict()
    assert again == tuned
    assert "--version_2_with_negative=true" in said
    never, said = predict("--null_score_diff_threshold=inf", "--doc_stride=9")
    assert "" not in never.values()
    assert "--doc_stride=9, but the model was trained with 8" in said
    assert "--null_score_diff_threshold=inf, but" not in said
    loaded = load_model(model)
    assert loaded.settings.version_2_with_negative
    assert loaded.settings.null_score_diff_threshold == float("inf")
    always, _ = predict("--null_score_diff_threshold=-inf")
    assert set(always.values()) == {""}
    document = tmp_path / "text.txt"
    document.write_text(TEXTS[0])
    question = "--question=Who lives where?"
    done = run("-m", "bert_tf.commands.ask", f"--model_dir={model}", f"--file={document}", question)
    assert done.stdout.startswith("(no answer)")
