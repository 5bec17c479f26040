"""run_ner.py's job before its first update: refused input, and the labels of a run."""

import json
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags as absl_flags

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.finetune.run import open_run
from bert_tf.model_directory.classes import WORD_LABELS, Classes
from bert_tf.model_directory.record import write_model_files
from bert_tf.records.sequences import SequenceStage
from bert_tf.tasks.classification import run as classification
from bert_tf.tasks.classification.flags import (
    classification_settings,
    define_classification_flags,
)
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.tagging import run as tagging
from bert_tf.tasks.tagging.files import predicted_labels, read_tagged
from bert_tf.tasks.tagging.flags import define_tagging_flags, tagging_settings
from bert_tf.tasks.tagging.run import Tagging, scores
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.train.run import begin
from bert_tf.util.errors import UserError
from tests.helpers.files import content_of
from tests.helpers.glue_files import write_data as write_glue
from tests.helpers.model_records import set_labels
from tests.helpers.small_span_model import CONFIG, write_model
from tests.helpers.tagging_files import LABELS, write_data
from tests.helpers.torch_networks import random_values


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A pre-trained model, and sentences to train it on."""
    directory = tmp_path_factory.mktemp("start")
    write_data(directory / "data")
    write_glue(directory / "SST-2")
    return write_model(directory / "model", span_head=False)


def write_trained(directory, start, task, labels=None, config=CONFIG):
    """A model directory with random weights and a head."""
    directory.mkdir()
    vocabulary = TokenizerFiles(start / "vocab.txt", do_lower_case=True)
    classes = labels and Classes(WORD_LABELS, tuple(labels))
    write_model_files(directory, config, vocabulary, classes)
    state = {"global_step": np.int64(7)}
    write_checkpoint(str(directory / "model.ckpt-7"), {**random_values(task.specs()), **state})
    tf.train.update_checkpoint_state(str(directory), "model.ckpt-7")
    return directory


@pytest.fixture(scope="module")
def tagger(start):
    return write_trained(start.parent / "tagger", start, TaggingTask(CONFIG, 5), LABELS)


@pytest.fixture(scope="module")
def classifier(start):
    return write_trained(start.parent / "classifier", start, ClassificationTask(CONFIG, 5))


def settings_of(start, output_dir, *more):
    values = absl_flags.FlagValues()
    define_tagging_flags(values)
    flags = [
        f"--data_dir={start.parent / 'data'}",
        f"--init_checkpoint={start}",
        f"--output_dir={output_dir}",
        "--max_seq_length=16",
        "--precision=fp32",
    ]
    values(["run_ner.py", *flags, *more])
    return tagging_settings(values)


FILES = {
    "unlabelled.txt": "Anna B-PER\nlives\n",
    "other.txt": "Anna B-PER\n\nRome B-TOWN\n",
    "unknown.txt": "Rome B-TOWN\n",
    "blank.txt": "\n\n",
    "mixed.txt": "Anna B-PER\nlives O\n\nRome B\n",
    "outside.txt": "Anna O\nlives O\n",
}
WRONG = {
    "no test set": (
        ["--do_predict", "--data_dir=."],
        "--data_dir: . has no file test.txt or test.",
    ),
    "no label": (
        ["--do_eval", "--eval_file={files}/unlabelled.txt"],
        "--eval_file: line 2 of {files}/unlabelled.txt has the word 'lives' without a label",
    ),
    "no sentences": (
        ["--do_eval", "--eval_file={files}/blank.txt"],
        "{files}/blank.txt has no sentences",
    ),
    "one label": (
        ["--do_train", "--train_file={files}/outside.txt"],
        "--train_file: {files}/outside.txt has only the label 'O', so there is nothing to distingu",
    ),
    "a label without its type": (
        ["--do_train", "--train_file={files}/mixed.txt"],
        "--train_file: line 4 of {files}/mixed.txt has the label 'B' without a type, which the "
        "labels of other lines have; correct it.",
    ),
    "a label to evaluate without its type": (
        ["--do_eval", "--eval_file={files}/mixed.txt", "--init_checkpoint={tagger}"],
        "--eval_file: line 4 of {files}/mixed.txt has the label 'B' without a type",
    ),
    "no known label": (
        ["--do_eval", "--eval_file={files}/unknown.txt", "--init_checkpoint={tagger}"],
        "line 1 of {files}/unknown.txt has the label 'B-TOWN', which the model does not have; its "
        "labels are B-LOC, B-PER, I-LOC, I-PER, O.",
    ),
    "other labels to train": (
        ["--do_train", "--data_dir={files}", "--init_checkpoint={tagger}"],
        "line 3 of {files}/train.txt has the label 'B-TOWN', which the model does not have",
    ),
    "no head": (["--do_predict"], "has no tagging head, so there is nothing to evaluate yet"),
    "a head for classes of a text": (
        ["--do_predict", "--init_checkpoint={classifier}"],
        "{classifier} has no tagging head, so there is nothing to evaluate yet; train",
    ),
    "classes of another task": (
        ["--do_predict", "--init_checkpoint={glue}"],
        "{glue} was trained on SST-2, not on labels of words; choose another checkpoint or --out",
    ),
    "labels of another head": (
        ["--do_predict", "--init_checkpoint={fewer}"],
        "2 classes are stored with it, but its head has 5; restore model.json or",
    ),
    "damaged labels": (
        ["--do_predict", "--init_checkpoint={damaged}"],
        "model record: {damaged}/model.json does not match its content_sha256",
    ),
    "no weights": (["--do_eval", "--init_checkpoint="], "contains no checkpoint; train first, or"),
    "length": (["--do_eval", "--max_seq_length=2"], "--max_seq_length=2 has no room for [CLS], a"),
    "teacher without a head": (
        ["--do_train", "--teacher_checkpoint={start}"],
        "--teacher_checkpoint={start} has no tagging head, so it gives no soft targets; train it "
        "with run_ner.py first, or give --alpha_ce=0.",
    ),
    "teacher with another head": (
        ["--do_train", "--teacher_checkpoint={classifier}"],
        "--teacher_checkpoint={classifier} has no tagging head",
    ),
    "teacher with other labels": (
        ["--do_train", "--init_checkpoint={tagger}", "--teacher_checkpoint={reversed}"],
        "--teacher_checkpoint={reversed} has the labels O, I-PER, I-LOC, B-PER, B-LOC, and the "
        "student B-LOC, B-PER, I-LOC, I-PER, O; give a teacher with the same ones",
    ),
    "teacher of other labels": (
        ["--do_train", "--data_dir={files}", "--teacher_checkpoint={tagger}"],
        "line 3 of {files}/train.txt has the label 'B-TOWN'",
    ),
    "no teacher": (
        ["--do_train", "--teacher_checkpoint=/nowhere"],
        "--teacher_checkpoint=/nowhere does not exist",
    ),
}


@pytest.fixture(scope="module")
def places(start, tagger, classifier):
    """What the flags above name."""
    files = start.parent / "files"
    files.mkdir()
    for name, content in FILES.items():
        (files / name).write_text(content)
    shutil.copy(files / "other.txt", files / "train.txt")
    found = {"start": start, "files": files, "tagger": tagger, "classifier": classifier}
    for name, labels in (
        ("fewer", ("B-PER", "O")),
        ("damaged", LABELS),
        ("reversed", tuple(reversed(LABELS))),
    ):
        found[name] = shutil.copytree(tagger, start.parent / name)
        set_labels(found[name], labels)
    record = found["damaged"] / "model.json"
    record.write_text(record.read_text().replace("B-PER", "B-ORG"))
    found["glue"] = shutil.copytree(classifier, start.parent / "glue")
    write_record(found["glue"], "SST-2")
    return found


def write_record(directory, task):
    """As a run that trained on a task."""
    ledger = {
        "data": {"task": task},
        "batch": {"global_batch": 4},
        "steps": {"scaled_by_ranks": False},
        "ranks": {"world_size": 1},
    }
    record = {"ledger": ledger, "model": CONFIG.to_dict()}
    (directory / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG)
def test_a_refused_run_leaves_nothing(start, places, tmp_path, monkeypatch, flags, words):
    monkeypatch.setattr(SequenceStage, "build", None)  # records may take long to make
    with pytest.raises(UserError) as error:
        flags = [flag.format(**places) for flag in flags]
        tagging.run(settings_of(start, tmp_path / "out", *flags))
    assert words.format(**places) in str(error.value)
    assert "\n" not in str(error.value)
    assert not content_of(tmp_path / "out")


@pytest.fixture(name="agreed")
def labels_of_a_run(start, tmp_path):
    """The labels that a dry run agrees on."""

    def agreed(*flags):
        settings = settings_of(start, tmp_path / "out", *flags, "--dry_run")
        with begin(settings.run, settings.runtime) as run:
            return open_run(Tagging.open, settings, run).model.classes.labels

    return agreed


def test_labels_that_keep_a_file_from_being_scored_by_entities(start, tagger, tmp_path, capsys):
    (tmp_path / "dev.txt").write_text("Anna B-PER\nlives O\n\nRome LOC\n")
    flags = ["--do_eval", f"--eval_file={tmp_path / 'dev.txt'}", f"--init_checkpoint={tagger}"]
    tagging.run(settings_of(start, tmp_path / "out", *flags, "--dry_run"))
    said = "dev.txt: the label 'LOC' (line 4) has none of the prefixes B-, I- (M-), E- (L-)"
    assert said in capsys.readouterr().out


def test_words_in_the_column_of_labels_are_said(start, tmp_path, capsys):
    """With the label first, words would be trained as if they were labels."""
    train = tmp_path / "train.txt"
    flags = ["--do_train", f"--train_file={train}", "--dry_run"]
    for count, is_said in ((36, False), (37, True)):
        train.write_text("O a\nO a\n\nB b\nO b\n" + "".join(f"O w{n}\n" for n in range(count)))
        tagging.run(settings_of(start, tmp_path / "out", *flags))
        said = (
            "train.txt: 37 of 39 labels are used once, such as 'w0' (line 6); the label must be "
            "the last column of a line, and the word the first"
        )
        assert (said in " ".join(capsys.readouterr().out.split())) is is_said


def test_labels_are_those_of_the_training_file_sorted(agreed):
    assert agreed("--do_train") == LABELS


def test_labels_are_those_stored_with_the_weights(agreed, places):
    """Their order is that of the head's classes, whatever that of the file's is."""
    expected = tuple(reversed(LABELS))
    assert agreed("--do_train", f"--init_checkpoint={places['reversed']}") == expected
    assert agreed("--do_predict", f"--init_checkpoint={places['reversed']}") == expected


def test_labels_are_those_of_the_teacher(agreed, places):
    teacher = f"--teacher_checkpoint={places['reversed']}"
    assert agreed("--do_train", teacher) == tuple(reversed(LABELS))
    # A student that compares hidden states only may have its own.
    own = f"--init_checkpoint={places['tagger']}"
    assert agreed("--do_train", teacher, own, "--alpha_ce=0", "--alpha_cos=1") == LABELS


def test_a_new_head_starts_from_the_frequencies_of_labels(start, tmp_path):
    settings = settings_of(start, tmp_path, "--do_train")
    with begin(settings.run, settings.runtime) as run:
        opened = open_run(Tagging.open, settings, run)
    bias = next(spec for spec in opened.model.task.specs() if spec.name == "output_bias")
    words = [
        label for sentence in opened.task.files["train"].sentences for label in sentence.labels
    ]
    expected = [words.count(label) / len(words) for label in LABELS]
    np.testing.assert_allclose(np.exp(bias.initial), expected, atol=0.01)


def test_training_starts_from_a_classifier_without_its_head(start, places, tmp_path, capsys):
    flags = ["--do_train", f"--init_checkpoint={places['classifier']}", "--dry_run"]
    tagging.run(settings_of(start, tmp_path / "out", *flags))
    assert "has no tagging head, so it starts from random weights" in capsys.readouterr().out


def classifying(start, output_dir, *flags):
    values = absl_flags.FlagValues()
    define_classification_flags(values)
    usual = ["--task_name=SST-2", f"--data_dir={start.parent / 'SST-2'}", "--max_seq_length=16"]
    values(["run_classifier.py", *usual, f"--output_dir={output_dir}", "--precision=fp32", *flags])
    return classification.run(classification_settings(values))


def test_a_classifier_does_not_use_the_head_of_a_tagger(start, tagger, tmp_path, capsys):
    flags = [f"--init_checkpoint={tagger}"]
    classifying(start, tmp_path / "out", *flags, "--do_train", "--dry_run")
    said = capsys.readouterr().out
    assert "has no classification head, so it starts from random weights" in said
    with pytest.raises(UserError, match="has no classification head, so there is nothing to"):
        classifying(start, tmp_path / "out", *flags, "--do_predict")


def test_a_classifier_does_not_resume_a_tagger(start, tagger, tmp_path):
    directory = shutil.copytree(tagger, tmp_path / "out")
    write_record(directory, "labels of words")
    with pytest.raises(UserError) as error:
        classifying(start, directory, "--do_train")
    assert str(error.value) == (
        f"{directory}/model.ckpt-7 was trained on labels of words, not on SST-2; choose another "
        "checkpoint or --output_dir."
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("classifier", "has no model.json next to it, so its labels are unknown; restore"),
        ("glue", "was trained on SST-2, not on labels of words; choose another"),
    ],
)
def test_directories_of_others_are_not_resumed(start, places, tmp_path, name, words):
    directory = shutil.copytree(places[name], tmp_path / "out")
    before = content_of(directory)
    with pytest.raises(UserError, match=words):
        tagging.run(settings_of(start, directory, "--do_train"))
    assert {
        path: value for path, value in content_of(directory).items() if path in before
    } == before


def test_a_label_that_training_lacked_counts_as_wrong(start, tagger, tmp_path, capsys):
    weights = [f"--init_checkpoint={tagger}", "--do_eval"]
    texts = {"known": "Anna B-PER\nlives O\n", "unknown": "Anna B-PER\nlives B-TOWN\n"}
    results = {}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
        given = [*weights, f"--eval_file={tmp_path / name}.txt"]
        results[name] = tagging.run(settings_of(start, tmp_path / f"out_{name}", *given))
    said = "unknown.txt: the model does not have the labels B-TOWN of 1 words; these words count as"
    assert capsys.readouterr().out.count(said) == 1
    # The word may be taken for O in the first file, and cannot be right in the second one.
    assert results["unknown"]["eval_accuracy"] in (0, 0.5)
    assert results["unknown"]["eval_accuracy"] <= results["known"]["eval_accuracy"]
    assert np.isfinite(results["unknown"]["eval_loss"])
    assert results["unknown"]["eval_loss"] != results["known"]["eval_loss"]


def test_scores(tmp_path):
    (tmp_path / "dev.txt").write_text("Anna B-PER\nlives O\n\nRome B-LOC\n. O\n")
    file = read_tagged(tmp_path / "dev.txt", flag="f", needs_labels=True)
    numbers = LABELS.index("B-PER"), LABELS.index("O"), LABELS.index("B-LOC")
    predictions = {
        "word_starts": np.array([[0, 1, 0, 1, 0], [0, 1, 1, 0, 0]]),
        "labels": np.array([[9, numbers[0], 9, numbers[1], 9], [9, numbers[1], numbers[2], 9, 9]]),
    }
    words = [sentence.words for sentence in file.sentences]
    predicted = predicted_labels(words, LABELS, predictions)
    assert predicted == [["B-PER", "O"], ["O", "B-LOC"]]
    assert scores(file, predicted, None) == {"eval_accuracy": 0.5}
    with pytest.raises(ValueError, match="4 words were predicted, not 3"):
        predicted_labels([words[0], ["x"]], LABELS, predictions)
