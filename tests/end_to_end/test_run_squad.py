"""The whole of run_squad.py on a small network: train, predict, score, ranks."""

import json
import math
import os
import shutil

import numpy as np
import pytest

from bert_tf.tasks.question_answering.examples import read_squad
from bert_tf.tasks.question_answering.metrics import evaluate
from tests.end_to_end.finetuning_runs import (
    assert_same_plan,
    flags_of_a_short_run,
    ledger_of,
    results_of,
)
from tests.helpers.files import modes_of
from tests.helpers.programs import mpirun, requires_horovod, run
from tests.helpers.squad_files import LENGTHS, write_model, write_squad
from tests.helpers.tensors import variables_of

SCRIPT = "run_squad.py"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("squad")
    write_model(directory / "start")
    write_squad(directory / "train.json", 16, seed=1)
    write_squad(directory / "dev.json", 6, seed=2)
    write_squad(directory / "train2.json", 16, seed=3, unanswerable=True)
    write_squad(directory / "dev2.json", 6, seed=4, unanswerable=True)
    return directory


@pytest.fixture(scope="module")
def flags(files):
    """Flags of a short run from random weights; later ones win."""
    return [
        *flags_of_a_short_run(files),
        f"--train_file={files / 'train.json'}",
        f"--predict_file={files / 'dev.json'}",
        *LENGTHS,
        "--train_batch_size=8",
        "--predict_batch_size=4",
        "--num_train_epochs=1",
        "--learning_rate=4e-3",
        "--save_checkpoints_steps=4",
    ]


@pytest.fixture(scope="module")
def trained(flags, files):
    """A finished run and what it printed."""
    output_dir = files / "model"
    done = run(
        SCRIPT,
        *flags,
        f"--output_dir={output_dir}",
        "--do_train",
        "--do_predict",
        "--eval_every_steps=4",
        "--deterministic",
    )
    return output_dir, done


def answers_of(directory):
    return json.loads((directory / "predictions.json").read_text())


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.each_tensorflow
def test_files_of_a_run(trained):
    output_dir, done = trained
    names = {path.name for path in output_dir.iterdir()}
    assert names >= {
        "predictions.json",
        "nbest_predictions.json",
        "eval_results.json",
        "eval_results.txt",
        "report.html",
        "run.json",
        "log.jsonl",
        "eval_log.jsonl",
        "bert_config.json",
        "vocab.txt",
        "tokenizer_config.json",
        "best",
    }
    assert "null_odds.json" not in names, "v1.1 has no null answer"
    assert "Traceback" not in done.stderr
    umask = os.umask(0o022)
    os.umask(umask)
    assert modes_of(output_dir) == {"file": {0o666 & ~umask}, "directory": {0o777 & ~umask}}
    assert f"the report is {output_dir / 'report.html'}" in done.stdout


def test_epochs_become_steps(trained):
    output_dir, _ = trained
    recorded = ledger_of(output_dir)
    windows = recorded["data"]["train_records"]
    assert windows > 16 * 3, "long paragraphs have several windows"
    steps = math.ceil(windows / 8)
    assert recorded["steps"]["train_steps"] == steps
    assert recorded["steps"]["warmup_steps"] == int(0.1 * steps)
    assert [line["step"] for line in lines_of(output_dir / "log.jsonl")] == list(
        range(1, steps + 1)
    )


def test_results_are_the_metric_of_the_written_answers(trained, files):
    output_dir, _ = trained
    squad = read_squad(
        files / "dev.json", flag="dev", version_2_with_negative=False, needs_answers=True
    )
    answers = answers_of(output_dir)
    assert list(answers) == [example.question_id for example in squad.examples]
    contexts = {example.question_id: example.context for example in squad.examples}
    assert all(answers[key] in contexts[key] for key in answers)
    results = results_of(output_dir)
    for name, value in evaluate(squad, answers).items():
        assert results[name] == value
    assert results["predict_sequences_per_second"] > 0


@pytest.mark.each_tensorflow
def test_the_loss_falls(trained):
    losses = [line["loss"] for line in lines_of(trained[0] / "log.jsonl")]
    # A guess among some thirty positions costs log(30) = 3.4.
    assert losses[0] > 2.5
    # What is left is which of the eight places it is, log(8) = 2.1, or less.
    assert np.mean(losses[-8:]) < np.log(8)


def test_the_best_is_a_model_directory(trained, tmp_path, files):
    best = trained[0] / "best"
    copy = shutil.copytree(best, tmp_path / "best")
    done = run(
        SCRIPT,
        f"--init_checkpoint={copy}",
        f"--predict_file={files / 'dev.json'}",
        f"--features_dir={files / 'features'}",
        *LENGTHS,
        "--precision=fp32",
        "--do_predict",
        f"--output_dir={tmp_path / 'again'}",
    )
    assert "up to date" in done.stderr, "records are used again"
    again, before = results_of(tmp_path / "again"), results_of(best)
    assert again["f1"] == before["f1"]
    evaluations = lines_of(trained[0] / "eval_log.jsonl")
    assert before["f1"] == max(line["f1"] for line in evaluations)


@pytest.mark.slow
def test_version_2(flags, files, tmp_path):
    done = run(
        SCRIPT,
        *flags,
        f"--train_file={files / 'train2.json'}",
        f"--predict_file={files / 'dev2.json'}",
        f"--features_dir={files / 'features2'}",
        "--version_2_with_negative",
        "--do_train",
        "--do_predict",
        f"--output_dir={tmp_path}",
    )
    results = results_of(tmp_path)
    assert {"HasAns_f1", "NoAns_f1", "best_f1", "best_f1_thresh"} <= results.keys()
    odds = json.loads((tmp_path / "null_odds.json").read_text())
    answers = answers_of(tmp_path)
    assert odds.keys() == answers.keys()
    for key, answer in answers.items():
        assert (answer == "") == (odds[key] > 0)
    squad = read_squad(
        files / "dev2.json", flag="dev", version_2_with_negative=True, needs_answers=True
    )
    written = evaluate(squad, answers)
    assert {name: results[name] for name in written} == written
    assert results["best_f1"] >= results["f1"]

    # The advice is to be found by trying: below all odds everything is answered with "".
    nbest = json.loads((tmp_path / "nbest_predictions.json").read_text())
    texts = {key: next(e["text"] for e in found if e["text"]) for key, found in nbest.items()}
    tried = {}
    for limit in [min(odds.values()) - 1, *odds.values()]:
        answered = {key: "" if odds[key] > limit else text for key, text in texts.items()}
        tried[limit] = evaluate(squad, answered)
    best_f1 = max(scores["f1"] for scores in tried.values())
    assert best_f1 == pytest.approx(results["best_f1"])
    advice = [
        f"--null_score_diff_threshold={limit:.4f} would be best for these questions: "
        f"exact_match {scores['exact']:.4f}  f1 {scores['f1']:.4f}\n"
        for limit, scores in tried.items()
        if scores["f1"] == pytest.approx(best_f1, abs=1e-9)
    ]
    assert sum(line in done.stdout for line in advice) == 1


@pytest.mark.slow
def test_answers_that_are_not_in_their_context_are_left_out_and_listed(flags, files, tmp_path):
    content = json.loads((files / "train.json").read_text())
    wrong = content["data"][0]["paragraphs"][3]["qas"][1]
    wrong["answers"][0]["text"] = "Atlantis"
    (tmp_path / "wrong.json").write_text(json.dumps(content))
    done = run(
        SCRIPT,
        *flags,
        f"--train_file={tmp_path / 'wrong.json'}",
        f"--features_dir={tmp_path / 'features'}",
        "--length_buckets=false",
        "--do_train",
        "--num_train_steps=1",
        f"--output_dir={tmp_path / 'model'}",
    )
    assert "1 unusable answers" in done.stdout
    listed = json.loads((tmp_path / "model" / "unusable_answers.json").read_text())
    assert listed == [wrong["id"]]


@pytest.mark.exhaustive
def test_early_stopping(flags, tmp_path):
    arguments = [
        *flags,
        "--do_train",
        "--do_predict",
        "--learning_rate=1e-12",  # nothing is learnt: the first evaluation stays the best
        "--num_train_steps=30",
        "--save_checkpoints_steps=2",
        "--eval_every_steps=2",
        "--early_stopping_evaluations=2",
        f"--output_dir={tmp_path}",
    ]
    done = run(SCRIPT, *arguments)
    assert "stopped early: the last 2 evaluations" in done.stdout
    assert [line["step"] for line in lines_of(tmp_path / "eval_log.jsonl")] == [2, 4, 6]
    again = run(SCRIPT, *arguments)
    assert "stopped early" in again.stdout
    assert lines_of(tmp_path / "log.jsonl")[-1]["step"] == 6


def assert_same_training(expected_dir, found_dir):
    """Whether two runs made the same updates, up to the order in which float32 is added up."""
    expected, found = variables_of(expected_dir), variables_of(found_dir)
    total = ledger_of(expected_dir)["steps"]["train_steps"]
    for name, value in expected.items():
        # Adam moves a weight by up to the rate where the gradient is zero in theory: key biases.
        tolerance = 2e-3 * total if "self/key/bias" in name else 2e-4
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "changes",
    [["--train_batch_size=4", "--num_accumulation_steps=2"], ["--use_xla"]],
    ids=["accumulation", "XLA"],
)
def test_ways_to_compute_the_same(changes, trained, flags, tmp_path):
    run(SCRIPT, *flags, *changes, "--do_train", "--do_predict", f"--output_dir={tmp_path}")
    assert_same_training(trained[0], tmp_path)
    assert answers_of(tmp_path) == answers_of(trained[0])


@pytest.mark.each_tensorflow
@pytest.mark.slow
@requires_horovod
@pytest.mark.parallel
def test_two_ranks_answer_as_one(trained, flags, tmp_path):
    done = mpirun(
        2,
        SCRIPT,
        "--horovod",
        *flags,
        "--train_batch_size=4",
        "--do_train",
        "--do_predict",
        f"--output_dir={tmp_path}",
    )
    assert done.stdout.count("the report is") == 1, "rank 0 alone prints"
    assert_same_plan(trained[0], tmp_path)
    assert_same_training(trained[0], tmp_path)
    assert answers_of(tmp_path) == answers_of(trained[0])
    for name in ("exact_match", "f1", "total"):
        assert results_of(tmp_path)[name] == results_of(trained[0])[name]
