"""run_classifier.py on MNLI's two sets, AX, XNLI and relations: scores and predictions."""

import csv

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from tests.end_to_end.finetuning_runs import flags_of_a_short_run, ledger_of, results_of
from tests.helpers.nli_files import (
    LABELS,
    write_diagnostic,
    write_mnli,
    write_relations,
    write_xnli,
)
from tests.helpers.programs import mpirun, requires_horovod, run
from tests.helpers.squad_files import write_model

SCRIPT = "run_classifier.py"
TRAINING = [
    *("--do_train", "--train_batch_size=16", "--num_train_epochs=6", "--learning_rate=3e-3"),
    *("--max_seq_length=24", "--deterministic"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tasks")
    write_model(directory / "start")
    return directory


@pytest.fixture(scope="module")
def mnli(files):
    """The pairs of MNLI's files, the flags of a run on them, and a finished run."""
    sets = write_mnli(files / "MNLI")
    flags = [*flags_of_a_short_run(files), "--task_name=mnli", f"--data_dir={files / 'MNLI'}"]
    done = run(
        SCRIPT,
        *flags,
        *TRAINING,
        "--do_eval",
        "--do_predict",
        "--eval_every_steps=40",
        "--save_checkpoints_steps=40",
        f"--output_dir={files / 'mnli'}",
    )
    return sets, flags, done


def predictions_of(path):
    """A file in GLUE's columns, whose index counts from 0."""
    header, *rows = (line.split("\t") for line in path.read_text().splitlines())
    assert header == ["index", "prediction"]
    assert [int(index) for index, _ in rows] == list(range(len(rows)))
    return [prediction for _, prediction in rows]


def labels_of(pairs):
    return [label for _, _, label in pairs]


@pytest.mark.slow
def test_both_sets_of_mnli_are_scored_and_predicted(mnli, files):
    sets, _, done = mnli
    output_dir, results = files / "mnli", results_of(files / "mnli")
    for part, file, suffix in (("matched", "MNLI-m", ""), ("mismatched", "MNLI-mm", "_mismatched")):
        labels = labels_of(sets[f"dev_{part}"])
        predicted = predictions_of(output_dir / f"{file}.tsv")  # of the same sentences
        assert results[f"eval_accuracy{suffix}"] == accuracy_score(labels, predicted)
        assert results[f"eval_accuracy{suffix}"] > 0.4, "a third by chance"
        table = (output_dir / f"test_results{suffix}.tsv").read_text().splitlines()
        probabilities = np.array([line.split("\t") for line in table], float)
        assert [LABELS[number] for number in probabilities.argmax(axis=1)] == predicted
        chosen = probabilities[np.arange(len(labels)), [LABELS.index(name) for name in labels]]
        assert results[f"eval_loss{suffix}"] == pytest.approx(-np.log(chosen).mean())
        assert f"the file for GLUE is {output_dir / file}.tsv" in done.stdout
    assert "dev_matched.tsv and dev_mismatched.tsv: 58 examples" in done.stdout
    assert results["eval_accuracy"] != results["eval_accuracy_mismatched"]
    assert "eval_accuracy_mismatched" in (output_dir / "eval_log.jsonl").read_text()
    page = (output_dir / "report.html").read_text()
    assert "accuracy_mismatched" in page
    assert "MNLI: dev_matched.tsv and dev_mismatched.tsv" in page


@pytest.mark.slow
def test_the_mismatched_set_alone(mnli, files, tmp_path):
    _, flags, _ = mnli
    file = files / "MNLI" / "dev_mismatched.tsv"
    does = ["--do_eval", f"--eval_file={file}", "--max_seq_length=24", f"--output_dir={tmp_path}"]
    run(SCRIPT, *flags, f"--init_checkpoint={files / 'mnli'}", *does)
    whole, alone = results_of(files / "mnli"), results_of(tmp_path)
    assert alone["eval_accuracy"] == whole["eval_accuracy_mismatched"]
    assert alone["eval_loss"] == pytest.approx(whole["eval_loss_mismatched"])
    assert "eval_accuracy_mismatched" not in alone


@pytest.mark.exhaustive
def test_a_model_of_mnli_predicts_the_diagnostic_set(mnli, files, tmp_path):
    sets, flags, _ = mnli
    pairs = sets["dev_matched"]
    write_diagnostic(files / "diagnostic", pairs)
    changes = ["--task_name=AX", f"--data_dir={files / 'diagnostic'}", "--max_seq_length=24"]
    start = [f"--init_checkpoint={files / 'mnli'}", f"--output_dir={tmp_path}"]
    run(SCRIPT, *flags, *changes, *start, "--do_eval", "--do_predict")
    predicted = predictions_of(tmp_path / "AX.tsv")
    assert predicted == predictions_of(files / "mnli" / "MNLI-m.tsv")
    expected = matthews_corrcoef(labels_of(pairs), predicted)
    assert results_of(tmp_path)["eval_matthews_correlation"] == pytest.approx(expected)


def test_a_directory_of_mnli_is_not_trained_on_another_task(mnli, files):
    _, flags, _ = mnli
    write_xnli(files / "XNLI", ["en", "de"])
    changes = ["--task_name=XNLI", "--language=en", f"--data_dir={files / 'XNLI'}"]
    done = run(SCRIPT, *flags, *TRAINING, *changes, f"--output_dir={files / 'mnli'}", check=False)
    assert "was trained on MNLI, not on XNLI" in done.stderr


@pytest.mark.exhaustive
@requires_horovod
@pytest.mark.parallel
def test_both_sets_on_two_ranks(mnli, files, tmp_path):
    _, flags, _ = mnli
    does = ["--do_eval", "--do_predict", "--max_seq_length=24", f"--output_dir={tmp_path}"]
    mpirun(2, SCRIPT, "--horovod", *flags, f"--init_checkpoint={files / 'mnli'}", *does)
    one, two = results_of(files / "mnli"), results_of(tmp_path)
    for name in ("eval_accuracy", "eval_accuracy_mismatched"):
        assert two[name] == one[name]
        loss = name.replace("accuracy", "loss")
        assert two[loss] == pytest.approx(one[loss], rel=1e-5)
    for name in ("MNLI-m.tsv", "MNLI-mm.tsv"):
        assert predictions_of(tmp_path / name) == predictions_of(files / "mnli" / name)


@pytest.mark.exhaustive
def test_xnli_is_trained_in_one_language_and_scored_in_several(files, tmp_path):
    found = write_xnli(files / "XNLI", ["en", "de", "zh"])
    flags = [*flags_of_a_short_run(files), "--task_name=XNLI", f"--data_dir={files / 'XNLI'}"]
    languages = ["--language=de,zh", "--train_language=en"]
    does = ["--do_eval", "--do_predict", f"--output_dir={tmp_path / 'xnli'}"]
    done = run(SCRIPT, *flags, *TRAINING, *languages, *does)
    assert "multinli.train.en.tsv: 200 examples" in done.stdout
    assert "xnli.dev.tsv: 43 examples" in done.stdout
    results = results_of(tmp_path / "xnli")
    for language, suffix in (("de", ""), ("zh", "_zh")):
        predicted = predictions_of(tmp_path / "xnli" / f"predictions{suffix}.tsv")
        labels = labels_of(found[language])
        assert results[f"eval_accuracy{suffix}"] == accuracy_score(labels, predicted)
        assert results[f"eval_accuracy{suffix}"] > 0.4, "a third by chance"
    # The records of one language are not taken for those of another.
    again = ["--language=en", "--do_eval", "--max_seq_length=24"]
    again += [f"--init_checkpoint={tmp_path / 'xnli'}", f"--output_dir={tmp_path / 'again'}"]
    assert "xnli.dev.tsv: 20 examples" in run(SCRIPT, *flags, *again).stdout
    assert ledger_of(tmp_path / "xnli")["data"]["task"] == "XNLI"


@pytest.mark.exhaustive
def test_relations_are_scored_without_the_negative_class(tmp_path):
    write_model(tmp_path / "start", "<", ">", "[", "]")
    write_relations(tmp_path / "train.jsonl", 200, seed=1)
    labels = write_relations(tmp_path / "dev.jsonl", 50, seed=2)
    run(
        SCRIPT,
        *flags_of_a_short_run(tmp_path),
        *TRAINING,
        "--do_eval",
        "--do_predict",
        f"--train_file={tmp_path / 'train.jsonl'}",
        f"--eval_file={tmp_path / 'dev.jsonl'}",
        f"--predict_file={tmp_path / 'dev.jsonl'}",
        "--negative_label=none",
        f"--output_dir={tmp_path / 'model'}",
    )
    with open(tmp_path / "model" / "predictions.csv", newline="") as file:
        predicted = [row["prediction"] for row in csv.DictReader(file)]
    results = results_of(tmp_path / "model")
    positive = ["lives_in", "works_in"]
    for average in ("micro", "macro"):
        expected = f1_score(labels, predicted, labels=positive, average=average)
        assert results[f"eval_{average}_f1"] == pytest.approx(expected)
    assert results["eval_micro_f1"] > 0.6
    assert results["eval_accuracy"] == accuracy_score(labels, predicted)
    page = (tmp_path / "model" / "report.html").read_text()
    assert "none (not in F1)" in page
