"""Evaluation sums, result files and the best checkpoint."""

import functools
import itertools
import json
import math
import operator
import shutil
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.model.losses import Sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import create_network
from bert_tf.model.variables import VariableSpec
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.train import evaluation, loop
from bert_tf.train.start_point import find_start
from bert_tf.util.errors import UserError
from tests.helpers.files import no_room
from tests.helpers.kills import killed_at
from tests.helpers.tiny_pretraining import CONFIG

FLOATS = st.floats(0, 2.0**100, width=32, allow_subnormal=False)
BATCHES = hnp.arrays(np.float32, st.tuples(st.integers(1, 40)), elements=FLOATS)


@hypothesis.settings(deadline=None)  # the machine may be busy
@hypothesis.given(BATCHES, st.randoms(use_true_random=False))
def test_sums_are_exact_and_have_no_order(values, random):
    exact = float(sum(map(Fraction, values.tolist())))
    shuffled = values.tolist()
    random.shuffle(shuffled)
    for found in (values, np.float32(shuffled)):
        [total] = evaluation.exact_sums(found[:, None])
        assert total == exact


def test_sums_keep_what_adding_in_float64_would_lose():
    values = np.float32([2.0**60, 1.0, 2.0**60] + [1.0] * 511)
    [total] = evaluation.exact_sums(values[:, None])
    assert total == 2.0**61 + 512
    assert functools.reduce(operator.add, values.tolist()) != total  # sum() compensates since 3.12


def test_sums_of_each_term_by_itself():
    batches = np.arange(12, dtype=np.float32).reshape(2, 6)
    assert evaluation.exact_sums(batches) == [6, 8, 10, 12, 14, 16]


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_a_loss_that_is_not_finite_stays_so(wrong):
    [total] = evaluation.exact_sums(np.float32([1.0, wrong, 2.0])[:, None])
    assert total == pytest.approx(wrong, nan_ok=True)


def test_results_are_ratios_of_sums():
    sums = {
        "masked_lm": Sums(20.0, 10.0, {"accuracy": 4.0}),
        "next_sentence": Sums(1.0, 2.0, {"accuracy": 1.5}),
    }
    assert evaluation.evaluation_results(sums, PretrainingTask(CONFIG)) == {
        "masked_lm_loss": 2.0,
        "masked_lm_accuracy": 0.4,
        "next_sentence_loss": 0.5,
        "next_sentence_accuracy": 0.75,
        "loss": 2.5,
        "masked_lm_perplexity": math.exp(2.0),
    }


def test_results_of_a_term_without_weight_and_of_one_that_diverged():
    sums = {
        "masked_lm": Sums(1e6, 1.0, {"accuracy": 0.0}),
        "next_sentence": Sums(0.0, 0.0, {"accuracy": 0.0}),
    }
    found = evaluation.evaluation_results(sums, PretrainingTask(CONFIG))
    assert found["next_sentence_loss"] == found["next_sentence_accuracy"] == 0
    assert found["masked_lm_perplexity"] == math.inf


def test_metrics_and_scores_are_the_tasks():
    """A regression has no accuracy."""

    class Regression:
        def scores(self, sums):
            return {"rmse": math.sqrt(sums["rating"].loss / sums["rating"].weight)}

    sums = {"rating": Sums(8.0, 2.0, {"absolute_error": 3.0, "bias": -1.0})}
    assert evaluation.evaluation_results(sums, Regression()) == {
        "rating_loss": 4.0,
        "rating_absolute_error": 1.5,
        "rating_bias": -0.5,
        "loss": 4.0,
        "rmse": 2.0,
    }


class WordCounts:
    """A task whose sums are the features themselves, in another order than its terms."""

    config = SimpleNamespace(initializer_range=1.0)
    terms: ClassVar = {"words": ("accuracy",), "other": ("accuracy",)}

    def specs(self):
        return [VariableSpec("v", ())]

    def outputs(self, variables, features, options):
        assert options.dropout is None
        return features["x"]

    def losses(self, outputs, features, options):
        return {"other": as_sums(outputs + 100), "words": as_sums(outputs)}

    def scores(self, sums):
        return {}


def as_sums(tensor):
    loss, weight, correct = tf.unstack(tensor)
    return Sums(loss, weight, {"accuracy": correct})


class Ranks(SingleProcess):
    """This rank found what is evaluated; the others of three found ``beside``."""

    def __init__(self, beside=()):
        self._beside = beside

    def gather(self, value):
        return [value, *self._beside]


def evaluate(tmp_path, ranks, max_steps=None):
    """The results of the batches [1, 1, 1], [2, 2, 2] ... of weights at step 7."""

    def input_fn():
        rows = np.arange(1, 6, dtype=np.float32)[:, None] * np.ones(3, np.float32)
        return tf.data.Dataset.from_tensor_slices({"x": rows})

    task = WordCounts()
    measured = evaluation.LossEvaluation(input_fn, ranks=ranks, task=task, max_steps=max_steps)

    with tf.Graph().as_default(), tf.Session() as session:
        create_network(task, ForwardOptions())
        step = tf.train.create_global_step()
        session.run([tf.global_variables_initializer()])
        session.run(step.assign(7))
        tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    outputs = loop.predict(
        measured.dataset,
        lambda features: measured.outputs(create_network(task, ForwardOptions()), features),
        checkpoint=str(tmp_path / "model.ckpt"),
        hooks=[],
        seed=1,
        config=tf.ConfigProto(),
    )
    return measured.run(outputs, tmp_path)


def test_an_evaluation_of_every_batch(tmp_path):
    results = evaluate(tmp_path, SingleProcess())
    assert results == {
        "words_loss": 1.0,
        "words_accuracy": 1.0,
        "other_loss": 1.0,
        "other_accuracy": 1.0,
        "loss": 2.0,
        "global_step": 7,
    }


def test_an_evaluation_counts_the_batches_of_all_ranks(tmp_path):
    # Losses of 30 and 45 at weights of 10 each, beside the first two batches of this rank: 1 + 2.
    beside = [np.float32([[30, 10, 0, 1, 1, 1]]), np.float32([[45, 10, 0, 1, 1, 1]])]
    results = evaluate(tmp_path, Ranks(beside), max_steps=2)
    assert results["words_loss"] == 78 / 23
    assert results["words_accuracy"] == 3 / 23


def test_result_files(tmp_path):
    evaluation.write_results(tmp_path, {"loss": 1.5, "global_step": 3})
    assert (tmp_path / "eval_results.txt").read_text() == "global_step = 3\nloss = 1.5\n"
    assert json.loads((tmp_path / "eval_results.json").read_text()) == {
        "loss": 1.5,
        "global_step": 3,
    }


def test_results_that_are_not_finite(tmp_path):
    evaluation.write_results(tmp_path, {"loss": math.nan, "perplexity": math.inf})
    assert (tmp_path / "eval_results.txt").read_text() == "loss = nan\nperplexity = inf\n"
    text = (tmp_path / "eval_results.json").read_text()
    assert json.loads(text) == {"loss": None, "perplexity": None}
    assert "NaN" not in text


def save_checkpoint(directory, step):
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("v", initializer=float(step))
        session.run(variable.initializer)
        saver = tf.train.Saver(save_relative_paths=True)
        return saver.save(session, str(directory / "model.ckpt"), global_step=step)


def test_the_best_is_kept_without_the_optimizer(tmp_path):
    values = {
        "bert/w": np.float32([1, 2]),
        "bert/w/adam_m": np.float32([3, 4]),
        "bert/w/adam_v": np.float32([5, 6]),
        "optimizer/update_count": np.int64(7),
        "loss_scale/good_updates": np.int64(1),
        "global_step": np.int64(7),
        "training/consumed_sequences": np.int64(56),
    }
    write_checkpoint(str(tmp_path / "model.ckpt-7"), values)
    assert evaluation.keep_if_best(tmp_path, str(tmp_path / "model.ckpt-7"), {"loss": 1.0})
    start = find_start(tmp_path / "best")
    assert (start.step, start.consumed_sequences) == (7, 56)
    reader = tf.train.load_checkpoint(start.checkpoint)
    kept = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert kept.keys() == {"bert/w", "global_step", "training/consumed_sequences"}
    for name, value in kept.items():
        assert value.dtype == values[name].dtype
        np.testing.assert_array_equal(value, values[name])
    size, before = (
        sum(path.stat().st_size for path in directory.glob("model.ckpt-7.data-*"))
        for directory in (tmp_path / "best", tmp_path)
    )
    assert size < before


def test_without_room_the_best_so_far_stays(tmp_path):
    evaluation.keep_if_best(tmp_path, save_checkpoint(tmp_path, 1), {"loss": 2.0})
    better = save_checkpoint(tmp_path, 2)
    with no_room(), pytest.raises((UserError, OSError)):
        evaluation.keep_if_best(tmp_path, better, {"loss": 1.0})
    evaluation.finish_exchange(tmp_path)
    best_is(tmp_path, 2.0, 1)


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


def test_half_written_files_are_not_kept(tmp_path):
    checkpoint = save_checkpoint(tmp_path, 1)
    (tmp_path / "model.ckpt-1.data-00000-of-00001.tempstate12").touch()
    assert evaluation.keep_if_best(tmp_path, checkpoint, {"loss": 1.0})
    assert not list((tmp_path / "best").glob("*tempstate*"))


def best_is(tmp_path, loss, step):
    best = tmp_path / "best"
    assert json.loads((best / "eval_results.json").read_text())["loss"] == loss
    assert tf.train.load_variable(tf.train.latest_checkpoint(str(best)), "v") == step
    assert not list(tmp_path.glob(".best*"))


def copy_checkpoint(checkpoint, directory):
    """In the place of TensorFlow, whose threads a forked process lacks."""
    path = Path(checkpoint)
    for file in path.parent.glob(f"{path.name}.*"):
        shutil.copy2(file, directory)
    (directory / "checkpoint").write_text(f'model_checkpoint_path: "{path.name}"\n')


@pytest.mark.exhaustive
def test_killed_at_any_system_call_the_best_checkpoint_is_never_lost(tmp_path, monkeypatch):
    """Each kill is followed by a start that repeats the evaluation, or by one that does not."""
    monkeypatch.setattr(evaluation, "write_without_optimizer", copy_checkpoint)
    good, better, bad = (save_checkpoint(tmp_path, step) for step in (1, 2, 3))
    for number in itertools.count():
        shutil.rmtree(tmp_path / "best", ignore_errors=True)
        evaluation.keep_if_best(tmp_path, good, {"loss": 0.1})
        found_end = not killed_at(
            number, lambda: evaluation.keep_if_best(tmp_path, better, {"loss": 0.05})
        )
        assert not evaluation.keep_if_best(tmp_path, bad, {"loss": 8.42})
        [kept] = (tmp_path / "best").glob("*.index")
        best_is(tmp_path, *((0.05, 2) if kept.stem == "model.ckpt-2" else (0.1, 1)))
        evaluation.keep_if_best(tmp_path, better, {"loss": 0.05})
        best_is(tmp_path, 0.05, 2)
        if found_end:
            break
    assert number > 10


@pytest.mark.parametrize("results", ["{}", "[]", '{"loss": null}', '{"loss": "low"}'])
def test_a_best_without_a_figure_is_not_replaced_unseen(tmp_path, results):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "eval_results.json").write_text(results)
    advice = r"best/eval_results\.json contains no loss .*; move .*best "
    with pytest.raises(UserError, match=advice):
        evaluation.keep_if_best(tmp_path, save_checkpoint(tmp_path, 1), {"loss": 1.0})


@pytest.mark.parametrize("figure", ["0.1", "0.5", "infinite"])
def test_a_damaged_figure_of_the_best_is_named(tmp_path, figure):
    results = {"loss": 0.1, "accuracy": 0.5, "infinite": math.inf}
    evaluation.keep_if_best(tmp_path, save_checkpoint(tmp_path, 1), results)
    assert not evaluation.keep_if_best(tmp_path, save_checkpoint(tmp_path, 2), {"loss": 0.2})
    path = tmp_path / "best" / "eval_results.json"
    path.write_text(path.read_text().replace(f'"{figure}": null', '"in": 2').replace(figure, "0.0"))
    with pytest.raises(UserError, match=rf"{path} and eval_results.txt next to it differ; move "):
        evaluation.keep_if_best(tmp_path, save_checkpoint(tmp_path, 3), {"loss": 0.05})


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
        (evaluation.LOSS, [1.0, None, math.nan], 2),
        (F1, [None, 1.0, 0.5], 1),
    ],
)
def test_evaluations_since_the_best(tmp_path, figure, values, since):
    lines = [json.dumps({"step": 10 * i, figure.name: value}) for i, value in enumerate(values)]
    if lines:
        (tmp_path / "eval_log.jsonl").write_text("\n".join(lines) + "\n")
    assert evaluation.evaluations_since_best(tmp_path, figure) == since


def test_evaluations_without_scores_stop_nothing(tmp_path):
    (tmp_path / "eval_log.jsonl").write_text('{"step": 1, "loss": 2}\n{"step": 2, "loss": 3}\n')
    assert evaluation.evaluations_since_best(tmp_path, F1) == 0
