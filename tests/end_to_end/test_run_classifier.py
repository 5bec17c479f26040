"""run_classifier.py on a small network: train, score, predict, seeds."""

import json

import numpy as np
import pytest

from bert_tf.tasks.classification.glue import GLUE_TASKS, read_glue
from bert_tf.tasks.classification.metrics import pearson, spearman
from tests.end_to_end.finetuning_runs import (
    flags_of_a_short_run,
    ledger_of,
    results_of,
)
from tests.helpers.glue_files import LENGTHS, write_data, write_pairs
from tests.helpers.programs import run
from tests.helpers.squad_files import write_model

SCRIPT = "run_classifier.py"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("glue")
    write_model(directory / "start")
    write_data(directory / "SST-2")
    return directory


@pytest.fixture(scope="module")
def flags(files):
    """Flags of a short run from random weights; later ones win."""
    return [
        *flags_of_a_short_run(files),
        "--task_name=SST-2",
        f"--data_dir={files / 'SST-2'}",
        *LENGTHS,
        "--train_batch_size=16",
        "--num_train_epochs=4",
        "--learning_rate=3e-3",
        "--save_checkpoints_steps=20",
    ]


@pytest.fixture(scope="module")
def trained(flags, files):
    """A finished run that predicts the development set, and what it printed."""
    output_dir = files / "model"
    done = run(
        SCRIPT,
        *flags,
        f"--output_dir={output_dir}",
        "--do_train",
        "--do_eval",
        "--do_predict",
        f"--predict_file={files / 'SST-2' / 'dev.tsv'}",
        "--eval_every_steps=20",
        "--deterministic",
    )
    return output_dir, done


def table_of(path):
    return [line.split("\t") for line in path.read_text().splitlines()]


def predictions_of(directory):
    return (directory / "predictions.tsv").read_text()


def probabilities_of(directory):
    return np.array(table_of(directory / "test_results.tsv"), float)


def labels_of(files):
    path = files / "SST-2" / "dev.tsv"
    return [
        row.label for row in read_glue(GLUE_TASKS["sst-2"], path, flag="f", needs_labels=True).rows
    ]


def test_it_learns_and_scores_what_it_predicts(trained, files):
    output_dir, done = trained
    labels = np.array(labels_of(files))
    header, *rows = table_of(output_dir / "predictions.tsv")
    assert header == ["index", "prediction"]
    assert [int(index) for index, _ in rows] == list(range(len(labels)))
    results = results_of(output_dir)
    assert results["eval_accuracy"] == np.mean([float(p) for _, p in rows] == labels)
    # Whoever always says the same is right in half of the cases.
    assert results["eval_accuracy"] > 0.9
    shares = probabilities_of(output_dir)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert [str(n) for n in shares.argmax(axis=1)] == [p for _, p in rows]
    chosen = shares[np.arange(len(labels)), labels.astype(int)]
    assert results["eval_loss"] == pytest.approx(-np.log(chosen).mean())
    assert "Traceback" not in done.stderr
    assert f"are in {output_dir / 'test_results.tsv'}" in done.stdout


def test_files_of_a_run(trained):
    output_dir, _ = trained
    assert {path.name for path in output_dir.iterdir()} >= {
        *("test_results.tsv", "predictions.tsv", "eval_results.json", "eval_results.txt"),
        *("run.json", "log.jsonl", "eval_log.jsonl", "bert_config.json", "vocab.txt", "best"),
    }
    ledger = ledger_of(output_dir)
    assert ledger["data"]["task"] == "SST-2"
    assert (ledger["data"]["train_records"], ledger["steps"]["train_steps"]) == (160, 40)
    evaluations = (output_dir / "eval_log.jsonl").read_text().splitlines()
    best = max(json.loads(line)["eval_accuracy"] for line in evaluations)
    assert results_of(output_dir / "best")["eval_accuracy"] == best
    assert (output_dir / "eval_results.txt").read_text().startswith("eval_accuracy = ")


def test_a_trained_directory_alone_predicts_the_test_set(trained, files, tmp_path):
    done = run(
        SCRIPT,
        f"--init_checkpoint={trained[0]}",
        "--task_name=sst2",
        f"--data_dir={files / 'SST-2'}",
        *LENGTHS,
        "--precision=fp32",
        "--do_predict=true",
        f"--output_dir={tmp_path}",
    )
    assert probabilities_of(tmp_path).shape == (11, 2)
    assert len((tmp_path / "SST-2.tsv").read_text().splitlines()) == 12
    assert f"the file for GLUE is {tmp_path / 'SST-2.tsv'}" in done.stdout
    assert not (tmp_path / "eval_results.json").exists()
    assert "test.tsv: 11 examples" in done.stdout


def test_a_directory_of_another_task_is_left_as_it_is(trained, flags):
    before = (trained[0] / "run.json").read_bytes()
    changes = ["--task_name=CoLA", "--do_train", f"--output_dir={trained[0]}"]
    done = run(SCRIPT, *flags, *changes, check=False)
    sentence = f"{trained[0]}/model.ckpt-40 was trained on SST-2, not on CoLA; give --task_name="
    assert f"error: {sentence}" in done.stderr
    assert done.returncode == 2
    assert (trained[0] / "run.json").read_bytes() == before


def test_classes_of_another_task_are_not_predicted(trained, flags, tmp_path):
    changes = ["--task_name=CoLA", "--do_predict", f"--output_dir={tmp_path}"]
    done = run(SCRIPT, *flags, f"--init_checkpoint={trained[0]}", *changes, check=False)
    assert f"error: {trained[0]} was trained on SST-2, not on CoLA" in done.stderr


@pytest.mark.exhaustive
def test_a_search_with_seeds(flags, tmp_path):
    arguments = ["--do_train", "--do_eval", "--num_train_steps=3", "--seeds=1,2"]
    arguments += ["--search=layerwise_lr_decay=0.5;learning_rate=1e-9,1e-2", "--freeze=embeddings"]
    done = run(SCRIPT, *flags, *arguments, f"--output_dir={tmp_path}")
    search = json.loads((tmp_path / "search.json").read_text())
    assert (search["metric"], search["trials"]) == ("eval_accuracy", 2)
    for row in search["found"]:
        directory = tmp_path / row["trial"]
        values = [results_of(directory / f"seed_{seed}")["eval_accuracy"] for seed in (1, 2)]
        summary = json.loads((directory / "seeds.json").read_text())
        assert summary["eval_accuracy"]["by_seed"] == {"1": values[0], "2": values[1]}
        assert row["eval_accuracy"] == pytest.approx(np.mean(values))
        shown = f"eval_accuracy {np.mean(values):.4f} +- {np.std(values, ddof=1):.4f}"
        assert f"2 seeds: {shown}" in done.stdout
        ledger = ledger_of(directory / "seed_2")
        peak = f"{ledger['learning_rate']['peak']:.0e}".replace("e-0", "e-")
        assert row["trial"] == f"layerwise_lr_decay=0.5,learning_rate={peak}"
        assert ledger["optimizer"]["rate_factors"][0] == "^bert/embeddings:0"
    assert f"the best by eval_accuracy is {tmp_path / search['best']}\n" in done.stdout


@pytest.mark.slow
def test_ratings_of_pairs(flags, tmp_path):
    """Of sentences alike or not, some of them too long for the network."""
    data = write_pairs(tmp_path / "STS-B")
    run(
        SCRIPT,
        *flags,
        "--task_name=STS-B",
        f"--data_dir={data}",
        f"--features_dir={tmp_path / 'features'}",
        "--max_seq_length=40",
        "--num_train_steps=3",
        "--eval_batch_size=64",
        "--predict_batch_size=64",
        "--do_train",
        "--do_eval",
        "--do_predict",
        f"--predict_file={data / 'sts-dev.csv'}",
        f"--output_dir={tmp_path / 'model'}",
    )
    results = results_of(tmp_path / "model")
    assert {"eval_spearman", "eval_pearson", "eval_loss"} <= results.keys()
    path = data / "sts-dev.csv"
    rows = read_glue(GLUE_TASKS["sts-b"], path, flag="f", needs_labels=True).rows
    ratings = probabilities_of(tmp_path / "model")[:, 0]
    labels = np.array([row.label for row in rows])
    for metric in (spearman, pearson):
        assert results[f"eval_{metric.__name__}"] == pytest.approx(metric(labels, ratings))
