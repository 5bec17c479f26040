"""Evaluation sums, result files and the best checkpoint."""

import json
import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.losses import ClassificationSums
from bert_tf.training import evaluation
from bert_tf.training.distribution import SingleProcess


def run_metrics(batches):
    """The values after feeding (loss_sum, weight_sum, correct_sum) batch by batch."""
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(tf.float32, [3])
        metrics = evaluation.term_metrics(
            {"masked_lm": ClassificationSums(*tf.unstack(fed))}, SingleProcess()
        )
        session.run(tf.local_variables_initializer())
        for batch in batches:
            session.run([update for _, update in metrics.values()], {fed: batch})
        return session.run({name: value for name, (value, _) in metrics.items()})


def test_metrics_are_ratios_of_sums_and_not_means_of_ratios():
    found = run_metrics([(10.0, 2.0, 1.0), (1.0, 8.0, 7.0)])
    assert found["masked_lm_loss"] == pytest.approx(1.1)
    assert found["masked_lm_accuracy"] == pytest.approx(0.8)


def test_each_batch_counts_once_however_many_metrics_there_are():
    # Loss and accuracy share a total; running both updates together must add a batch once.
    found = run_metrics([(3.0, 1.0, 0.0)])
    assert found["masked_lm_loss"] == pytest.approx(3.0)


def test_sums_keep_what_float32_would_lose():
    batches = [(1.0, 2.0**25, 0.0)] + [(1.0, 1.0, 0.0)] * 4
    assert run_metrics(batches)["masked_lm_loss"] == pytest.approx(5.0 / (2**25 + 4), rel=1e-12)


def test_an_empty_set_gives_zero():
    assert run_metrics([(0.0, 0.0, 0.0)])["masked_lm_loss"] == 0


def test_derived_results():
    metrics = {
        "masked_lm_loss": np.float64(2.0),
        "masked_lm_accuracy": np.float64(0.5),
        "next_sentence_loss": np.float64(0.5),
        "next_sentence_accuracy": np.float64(0.75),
        "loss": np.float32(99),
        "global_step": np.int64(7),
    }
    results = evaluation.with_derived_results(
        metrics, terms=["masked_lm", "next_sentence"], perplexity_of="masked_lm"
    )
    assert results["loss"] == 2.5
    assert results["masked_lm_perplexity"] == pytest.approx(math.exp(2.0))
    assert results["global_step"] == 7


def test_result_files(tmp_path):
    evaluation.write_results(tmp_path, {"loss": 1.5, "global_step": 3})
    assert (tmp_path / "eval_results.txt").read_text() == "global_step = 3\nloss = 1.5\n"
    assert json.loads((tmp_path / "eval_results.json").read_text()) == {
        "loss": 1.5,
        "global_step": 3,
    }


def save_checkpoint(directory, step):
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("v", initializer=float(step))
        session.run(variable.initializer)
        saver = tf.train.Saver(save_relative_paths=True)
        return saver.save(session, str(directory / "model.ckpt"), global_step=step)


def test_the_best_checkpoint_is_kept_whole(tmp_path):
    losses = {1: 3.0, 2: 2.0, 3: 2.5, 4: math.nan}
    kept = [
        evaluation.keep_if_best(tmp_path, save_checkpoint(tmp_path, step), {"loss": loss})
        for step, loss in losses.items()
    ]
    assert kept == [True, True, False, False]
    best = tf.train.latest_checkpoint(str(tmp_path / "best"))
    assert tf.train.load_variable(best, "v") == 2.0
    assert sorted(p.name for p in (tmp_path / "best").iterdir()) == [
        "checkpoint",
        "eval_results.json",
        "eval_results.txt",
        "model.ckpt-2.data-00000-of-00001",
        "model.ckpt-2.index",
        "model.ckpt-2.meta",
    ]
    assert not list(tmp_path.glob(".best*"))


F1 = evaluation.Figure("f1", higher_is_better=True)


def test_the_best_by_a_figure_that_should_be_high(tmp_path):
    scores = {1: 50.0, 2: math.nan, 3: 60.0, 4: 60.0}
    kept = [
        evaluation.keep_if_best(tmp_path, save_checkpoint(tmp_path, step), {"f1": value}, F1)
        for step, value in scores.items()
    ]
    assert kept == [True, False, True, False]


@pytest.mark.parametrize(
    ("figure", "values", "since"),
    [
        (F1, [], 0),
        (F1, [1.0], 0),
        (F1, [1.0, 2.0, 2.0, 1.5], 2),
        (F1, [1.0, 0.5, 2.0], 0),
        (evaluation.LOSS, [1.0, 0.5, 0.7, 0.6], 2),
        (evaluation.LOSS, [1.0, math.inf, 0.7], 0),
    ],
)
def test_evaluations_since_the_best(tmp_path, figure, values, since):
    lines = [json.dumps({"step": 10 * i, figure.name: value}) for i, value in enumerate(values)]
    if lines:
        (tmp_path / "eval_log.jsonl").write_text("\n".join(lines) + "\n")
    assert evaluation.evaluations_since_best(tmp_path, figure) == since
