"""load_model predicts what run_classifier.py writes for the same texts."""

import csv

import numpy as np
import pytest

from bert_tf.serving.load import load_model
from tests.end_to_end.finetuning_runs import flags_of_a_short_run
from tests.helpers.model_records import classes_in
from tests.helpers.programs import run
from tests.helpers.squad_files import NAMES, PLACES, write_model

# Half of them are longer than a sequence of 16 tokens.
TEXTS = [
    f"{name} lives in {place}" + " , and works in the old town every year" * (number % 4)
    for number, (name, place) in enumerate(zip(NAMES, PLACES))
]
PAIRS = list(zip(TEXTS, reversed(TEXTS)))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("loaded")
    write_model(directory / "start")
    return directory


def short_run(files, script, name, *flags):
    """A run of a few updates that predicts, too; returns its directory."""
    usual = [*flags_of_a_short_run(files), f"--features_dir={files / name}_features"]
    usual += ["--max_seq_length=16", "--learning_rate=3e-2"]
    actions = ["--do_train", "--do_predict", "--num_train_epochs=2", "--train_batch_size=4"]
    run(script, *usual, *actions, *flags, f"--output_dir={files / name}")
    return files / name


def write_table(path, columns, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def classifier(files, name, columns, labels, *flags, texts=TEXTS):
    rows = [[text, label] if isinstance(text, str) else [*text, label]
            for text, label in zip(texts, labels)]  # fmt: skip
    table = write_table(files / f"{name}.csv", columns, rows)
    given = [f"--train_file={table}", f"--predict_file={table}"]
    directory = short_run(files, "run_classifier.py", name, *given, *flags)
    with open(directory / "predictions.csv", newline="") as file:
        written = [row["prediction"] for row in csv.DictReader(file)]
    return directory, written, np.loadtxt(directory / "test_results.tsv", ndmin=2)


@pytest.mark.parametrize(
    "long_texts",
    [
        "head",
        pytest.param("tail", marks=pytest.mark.exhaustive),
        pytest.param("windows", marks=pytest.mark.exhaustive),
    ],
)
def test_classes_as_run_classifier_writes_them(files, long_texts):
    labels = ["north", "south", "west", "south"] * 2
    # By length, so that the few updates learn something that depends on the text.
    flags = [f"--long_texts={long_texts}", "--doc_stride=5", "--length_buckets"]
    name = f"classes_{long_texts}"
    directory, written, numbers = classifier(files, name, ("text", "label"), labels, *flags)
    found = load_model(directory).predict(TEXTS)
    assert [one.label for one in found] == written
    assert list(found[0].probabilities) == ["north", "south", "west"]
    probabilities = [list(one.probabilities.values()) for one in found]
    np.testing.assert_allclose(probabilities, numbers, atol=1e-5)
    if long_texts == "head":  # what is read of long texts matters
        whole = load_model(directory, max_seq_length=48).predict(TEXTS)
        assert np.abs([list(one.probabilities.values()) for one in whole] - numbers).max() > 1e-4


@pytest.mark.slow
def test_several_classes_with_the_threshold_of_the_evaluation(files):
    labels = ["north,old", "old", "", "north", "old,north,new", "new", "old", "north"]
    table = files / "several.csv"
    flags = ["--multi_label", "--do_eval", f"--eval_file={table}"]
    directory, written, numbers = classifier(files, "several", ("text", "label"), labels, *flags)
    threshold = classes_in(directory).thresholds[0]
    assert threshold != 0.5
    found = load_model(directory).predict(TEXTS)
    assert [",".join(one.labels) for one in found] == written
    probabilities = [list(one.probabilities.values()) for one in found]
    np.testing.assert_allclose(probabilities, numbers, atol=1e-5)


@pytest.mark.exhaustive
def test_ratings_of_pairs(files):
    columns, ratings = ("text", "other", "label"), range(8)
    flags = ["--regression", "--pair_column=other"]
    directory, written, numbers = classifier(
        files, "ratings", columns, ratings, *flags, texts=PAIRS
    )
    found = load_model(directory).predict(PAIRS)
    np.testing.assert_allclose([[one.rating] for one in found], numbers, atol=1e-5)
    assert [f"{one.rating:.3f}" for one in found] == written
