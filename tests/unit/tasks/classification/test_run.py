"""run_classifier.py's job before its first update: refused input, and files written by then."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from absl import flags as absl_flags
from sklearn.metrics import accuracy_score, f1_score

from bert_tf.finetune.run import open_run
from bert_tf.model_directory.classes import SINGLE_LABEL, Classes
from bert_tf.records.sequences import SequenceStage
from bert_tf.tasks.classification import run as classification
from bert_tf.tasks.classification.answers import (
    Answers,
    predictions_name,
    scores,
    write_own_predictions,
    write_predictions,
    write_probabilities,
)
from bert_tf.tasks.classification.flags import (
    classification_settings,
    define_classification_flags,
)
from bert_tf.tasks.classification.glue import GLUE_TASKS, read_glue
from bert_tf.tasks.classification.own_files import TableSettings, own_task, read_texts
from bert_tf.tasks.classification.run import (
    TextClassification,
    balanced_weights,
    best_constant,
)
from bert_tf.tasks.classification.texts import Part
from bert_tf.train.run import begin
from bert_tf.util.errors import UserError
from tests.helpers.glue_files import write_data
from tests.helpers.model_records import set_record
from tests.helpers.small_span_model import write_model


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A pre-trained model, and sentences to train it on."""
    directory = tmp_path_factory.mktemp("start")
    write_data(directory / "SST-2")
    return write_model(directory / "model", span_head=False)


def settings_of(start, output_dir, *more):
    values = absl_flags.FlagValues()
    define_classification_flags(values)
    flags = [
        "--task_name=SST-2",
        f"--data_dir={start.parent / 'SST-2'}",
        f"--init_checkpoint={start}",
        f"--output_dir={output_dir}",
        "--max_seq_length=16",
        "--precision=fp32",
    ]
    values(["run_classifier.py", *flags, *more])
    return classification_settings(values)


def test_adam_has_bias_correction(start, tmp_path):
    def options(*given):
        settings = settings_of(start, tmp_path, "--do_eval", *given)
        return settings.optimization.optimizer_options

    assert options()["bias_correction"] is True
    assert options("--noadam_bias_correction")["bias_correction"] is False
    assert "bias_correction" not in options("--optimizer_type=lamb")
    assert options("--optimizer_type=lamb", "--noadam_bias_correction")
    with pytest.raises(UserError, match="--lamb_prenormalize belongs to"):
        options("--lamb_prenormalize")


WRONG = {
    "nothing to do": ([], "give --do_train, --do_eval, --do_predict or several"),
    "no task": (["--do_eval", "--task_name="], "give --task_name for a task of GLUE, or files"),
    "another task": (["--do_eval", "--task_name=SNLI"], "--task_name=SNLI is not one of CoLA, "),
    "no data": (["--do_eval", "--data_dir="], "--data_dir is required"),
    "no directory": (["--do_eval", "--data_dir=nowhere"], "--data_dir=nowhere is not a directory"),
    "no test set": (["--do_predict", "--data_dir=."], "--data_dir: . has no test.tsv; give"),
    "no such file": (["--do_predict", "--predict_file=nowhere"], "--predict_file: nowhere does"),
    "no labels to evaluate": (
        ["--do_eval", "--eval_file={start}/../SST-2/test.tsv"],
        "SST-2/test.tsv has no column 'label'",
    ),
    "another task's file": (
        ["--do_eval", "--task_name=MRPC"],
        "dev.tsv has no column '#1 String'; give a file of MRPC",
    ),
    "labels missing": (
        ["--do_predict", "--do_train", "--data_dir={start}/../wrong"],
        "train.tsv has no column 'label'",
    ),
    "no language": (["--do_eval", "--language=de"], "--language and --train_language are for"),
    "languages": (["--do_eval", "--task_name=XNLI", "--language=de,de"], "must be different lang"),
    "no training language": (
        ["--do_train", "--task_name=XNLI", "--language=de", "--train_language=en"],
        "has no multinli/multinli.train.en.tsv and no ",
    ),
    "no mismatched set": (
        ["--do_eval", "--task_name=MNLI"],
        "has no dev_matched.tsv; give the directory of MNLI's files",
    ),
    "no set to train on": (["--do_train", "--task_name=AX"], "AX has no train set; train a model"),
    "negative class of a task": (
        ["--do_eval", "--negative_label=0"],
        "--task_name=sst-2 says what the columns and labels are; leave out",
    ),
    "negative class of ratings": (
        ["--do_eval", "--task_name=", "--regression", "--negative_label=0"],
        "--negative_label is for one class per text",
    ),
    "length": (["--do_eval", "--max_seq_length=2"], "--max_seq_length=2 has no room for"),
    "no length": (["--do_eval", "--max_seq_length=0"], "--max_seq_length=0 must be at least 1"),
    "length of the network": (["--do_eval", "--max_seq_length=65"], "max_position_embeddings=64"),
    "batch": (["--do_eval", "--eval_batch_size=0"], "--eval_batch_size=0 must be at least 1"),
    "prediction batch": (["--do_predict", "--predict_batch_size=0"], "must be at least 1"),
    "seeds": (["--do_train", "--seeds=1,1"], "--seeds=1,1 names a seed twice"),
    "no evaluation": (["--do_train", "--eval_every_steps=1000"], "needs --do_train and --do_eval"),
    "warm-up": (["--do_train", "--num_warmup_steps=99"], "=99 is more than the at most 15 steps"),
    "no head": (["--do_predict"], "has no classification head, so there is nothing to evaluate"),
}


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG)
def test_a_refused_run_leaves_nothing(start, tmp_path, monkeypatch, flags, words):
    wrong = start.parent / "wrong"
    wrong.mkdir(exist_ok=True)
    for name in ("train.tsv", "test.tsv"):
        (wrong / name).write_text("index\tsentence\n0\tA\n")
    monkeypatch.setattr(SequenceStage, "build", None)  # records may take long to make
    with pytest.raises(UserError) as error:
        classification.run(
            settings_of(start, tmp_path / "out", *(flag.format(start=start) for flag in flags))
        )
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not any(path.is_file() for path in (tmp_path / "out").rglob("*"))


def test_the_ledger_has_what_the_loss_depends_on(start, tmp_path, capsys):
    given = ["--do_train", "--dry_run", "--class_weights=balanced", "--label_smoothing=0.1"]
    classification.run(settings_of(start, tmp_path / "out", *given))
    assert "class_weights=balanced  label_smoothing=0.1" in capsys.readouterr().out


def test_classes_that_may_be_ratings_are_pointed_out(start, tmp_path, capsys):
    file = tmp_path / "t.csv"
    file.write_text("text,label\na,1\nb,0.5\nc,2\n")
    given = ["--task_name=", "--data_dir=", f"--train_file={file}", "--do_train", "--dry_run"]
    said = "the 3 classes are numbers such as 0.5; if they are ratings, give --regression"
    for more in ([], ["--regression"]):
        classification.run(settings_of(start, tmp_path / "out", *given, *more))
        assert (said in capsys.readouterr().out) == (not more)


@pytest.mark.parametrize("does", ["eval", "predict"])
def test_a_file_that_is_given_needs_no_directory(start, tmp_path, does):
    file = start.parent / "SST-2" / "dev.tsv"
    given = [f"--do_{does}", "--data_dir=", f"--{does}_file={file}"]
    settings = settings_of(start, tmp_path / "out", *given)
    assert (settings.data_dir, getattr(settings, f"{does}_file")) == (None, file)


def test_classes_are_numbered_as_in_the_model(start, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(start, model)
    set_record(model, classes=Classes.of_texts(SINGLE_LABEL, ("1", "0")))
    settings = settings_of(start, tmp_path / "out", "--do_train", f"--init_checkpoint={model}")
    with begin(settings.run, settings.runtime) as run:
        opened = open_run(TextClassification.open, settings, run)
    assert opened.model.classes.labels == ("1", "0")
    usual = read_glue(
        GLUE_TASKS["sst-2"], start.parent / "SST-2/train.tsv", flag="f", needs_labels=True
    )
    rows = zip(opened.task.files["train"].rows, usual.rows)
    assert all(row.label == 1 - other.label for row, other in rows)


def test_own_classes_are_compared_with_those_of_the_first_weights(start, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("text,label\na,x\nb,y\n")
    given = ["--task_name=", "--data_dir=", f"--train_file={file}", "--do_train"]
    settings = settings_of(start, tmp_path / "out", *given)
    with begin(settings.run, settings.runtime) as run:
        task = open_run(TextClassification.open, settings, run).model.task
    assert [head.classes for head in task.heads] == [("x", "y")]


def test_what_own_files_need_of_the_weights(start, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("text,other\na,b\n")

    def refused(weights, *more):
        given = ["--task_name=", "--data_dir=", f"--predict_file={file}", "--do_predict"]
        given += [f"--init_checkpoint={weights}", "--text_column=text", *more]
        with pytest.raises(UserError) as error:
            classification.run(settings_of(start, tmp_path / "out", *given))
        return str(error.value)

    model = tmp_path / "model"
    shutil.copytree(start, model)
    assert refused(model).startswith(f"{model} has no model.json next to it, so its classes")
    assert "contains no checkpoint; train first, or give --init_ch" in refused("")
    set_record(model, classes=Classes.of_texts(SINGLE_LABEL, ("a", "b")))
    kinds = "was trained for single label classification, not for"
    assert f"{kinds} regression; give the same of" in refused(model, "--regression")
    assert f"{kinds} multi label classification; give" in refused(model, "--multi_label")
    for trained, more, advice in (
        ("own texts", ["--pair_column=other"], "not on own pairs; leave out --pair_column, or cho"),
        ("own pairs", [], "not on own texts; give --pair_column, or choose another checkpoint"),
    ):
        (model / "run.json").write_text(json.dumps({"ledger": {"data": {"task": trained}}}))
        assert f"{model} was trained on {trained}, {advice}" in refused(model, *more)


def initial_bias(start, output_dir, *flags):
    """What the head's bias starts from, and the training set."""
    settings = settings_of(start, output_dir, *flags)
    with begin(settings.run, settings.runtime) as run:
        opened = open_run(TextClassification.open, settings, run)
    bias = next(spec for spec in opened.model.task.specs() if spec.name == "output_bias")
    return bias.initial, opened.task.files.get("train")


def test_a_new_head_starts_from_the_best_constant_answer(start, tmp_path):
    bias, train = initial_bias(start, tmp_path, "--do_train")
    assert bias == best_constant(train)
    assert initial_bias(start, tmp_path, "--do_eval") == (0.0, None)
    bias, train = initial_bias(start, tmp_path, "--do_train", "--class_weights=balanced")
    np.testing.assert_allclose(np.exp(bias), 0.5)
    assert bias == best_constant(train, balanced_weights(train))


def scores_of(name, logits, labels):
    return scores(GLUE_TASKS[name], Answers(GLUE_TASKS[name].classes, logits), labels)


def test_scores_of_classes():
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [-800.0, 800.0]], np.float32)
    labels = np.array([0.0, 1.0, 1.0, 0.0])
    found = scores_of("mrpc", logits, labels)
    chosen = [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(3))]
    # The last probability underflows in float64, but its logarithm does not.
    loss = (1600 - np.log(chosen).sum()) / 4
    assert found == {"eval_accuracy": 0.5, "eval_f1": 0.5, "eval_loss": pytest.approx(loss)}


def test_scores_of_a_regression():
    found = scores_of("sts-b", np.array([[1.0], [4], [3]]), np.array([1.0, 2.0, 4.0]))
    assert found["eval_spearman"] == pytest.approx(0.5)
    assert found["eval_pearson"] == pytest.approx(np.corrcoef([1, 2, 4], [1, 4, 3])[0, 1])
    assert found["eval_loss"] == pytest.approx(5 / 3)
    assert found["eval_mean_absolute_error"] == pytest.approx(1.0)
    assert found["eval_root_mean_squared_error"] == pytest.approx((5 / 3) ** 0.5)


def test_files_of_classes(tmp_path):
    logits = np.log(np.array([[0.25, 0.75], [0.9, 0.1]]))
    task = GLUE_TASKS["cola"]
    answers = Answers(task.classes, logits)
    write_probabilities(answers, tmp_path / "test_results.tsv")
    write_predictions(task, answers, tmp_path / "predictions.tsv")
    lines = (tmp_path / "test_results.tsv").read_text().splitlines()
    found = [[float(number) for number in line.split("\t")] for line in lines]
    np.testing.assert_allclose(found, [[0.25, 0.75], [0.9, 0.1]])
    assert (tmp_path / "predictions.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"


def test_files_of_a_regression(tmp_path):
    task = GLUE_TASKS["sts-b"]
    answers = Answers(task.classes, np.array([[2.5004], [-0.1], [5.2]]))
    write_probabilities(answers, tmp_path / "test_results.tsv")
    write_predictions(task, answers, tmp_path / "predictions.tsv")
    assert (tmp_path / "test_results.tsv").read_text() == "2.5004\n-0.1\n5.2\n"
    lines = (tmp_path / "predictions.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", "0\t2.500", "1\t0.000", "2\t5.000"]


def test_predicted_labels_are_read_back_with_the_flags_of_the_training_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('text,label\na,"Doe, A;Roe, B"\nb,\n')
    settings = TableSettings(multi_label=True, label_separator=";")
    texts = read_texts(path, settings, flag="train_file", needs_labels=True)
    classes = Classes.of_texts(settings.kind, texts.classes())
    file = texts.with_numbers(own_task(texts.columns, settings, classes))
    predicted = tmp_path / "predictions.csv"
    answers = Answers(file.task.classes, np.array([[1.0, 1.0], [-1.0, -1.0]]))
    write_own_predictions(file, answers, predicted)
    columns = dataclasses.replace(settings, label_column="prediction")
    again = read_texts(predicted, columns, flag="eval_file", needs_labels=True)
    assert [example.label for example in again.examples] == [("Doe, A", "Roe, B"), ()]


@pytest.mark.parametrize(
    ("task", "part", "name"),
    [
        ("sst-2", Part("", Path("SST-2/test.tsv"), slice(0, 1)), "SST-2.tsv"),
        ("sst-2", Part("", Path("SST-2/dev.tsv"), slice(0, 1)), "predictions.tsv"),
        ("mnli", Part("", Path("test_matched.tsv"), slice(0, 1)), "MNLI-m.tsv"),
        ("mnli", Part("mismatched", Path("test_mismatched.tsv"), slice(0, 1)), "MNLI-mm.tsv"),
        ("mnli", Part("mismatched", Path("dev.tsv"), slice(0, 1)), "predictions_mismatched.tsv"),
        ("xnli", Part("fr", Path("xnli.test.tsv"), slice(0, 1)), "predictions_fr.tsv"),
    ],
)
def test_names_of_prediction_files(task, part, name):
    assert predictions_name(GLUE_TASKS[task], part) == name


def test_f1_without_the_negative_class():
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(200, 6)), rng.integers(0, 6, 200)
    logits[np.arange(200), labels] += 1
    predicted = logits.argmax(axis=1)
    found = scores_of("chemprot", logits, labels)
    micro = f1_score(labels, predicted, labels=range(5), average="micro")
    assert found["eval_micro_f1"] == pytest.approx(micro)
    assert found["eval_accuracy"] == accuracy_score(labels, predicted)
    own = own_task(
        ("text", None, "label"),
        TableSettings(negative_label="b"),
        Classes(SINGLE_LABEL, tuple("abcdef")),
    )
    assert own.metrics[0] == "micro_f1"
    others = [0, 2, 3, 4, 5]
    found = scores(own, Answers(own.classes, logits), labels)
    for average in ("micro", "macro"):
        expected = f1_score(labels, predicted, labels=others, average=average)
        assert found[f"eval_{average}_f1"] == pytest.approx(expected)
