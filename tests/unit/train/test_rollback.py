"""Runs that go back to an earlier checkpoint, against numpy; some are interrupted as they do."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.train import rollback
from bert_tf.train.execute import run_task
from bert_tf.train.job import RunModel
from bert_tf.train.rollback import last_good
from bert_tf.train.rollback_record import RECORD_NAME, Rollback, read_rollbacks
from bert_tf.train.start_point import find_start
from bert_tf.util.errors import UserError
from tests.helpers.regression_task import RegressionTask
from tests.helpers.settings import optimization_settings, runtime_settings, with_values
from tests.helpers.tensors import variables_of
from tests.helpers.tiny_pretraining import CONFIG, pretraining_settings

BATCH, RATE, FACTOR = 4, 0.05, 0.5
STEPS, EVERY = 10, 4


class InterruptedError(Exception):
    pass


def batch(position, poisoned):
    x = np.random.default_rng(position).normal(size=[BATCH, 3]).astype(np.float32)
    y = x @ np.float32([1.0, -2.0, 0.5]) + np.float32(3.0)
    return {"x": x, "y": np.where(position in poisoned, np.nan, y).astype(np.float32)}


@pytest.fixture(name="train")
def training(tmp_path):
    usual = pretraining_settings(tmp_path).run

    def train(*poisoned, directory="model", steps=STEPS, factor=FACTOR, **changes):
        def batches(run, _):
            spec = {"x": (tf.float32, [None, 3]), "y": (tf.float32, [None])}
            positions = range(run.start.data_position, 1000)
            return tf.data.Dataset.from_generator(
                lambda: (batch(position, poisoned) for position in positions),
                output_types={name: dtype for name, (dtype, _) in spec.items()},
                output_shapes={name: shape for name, (_, shape) in spec.items()},
            )

        settings = with_values(
            usual,
            output_dir=tmp_path / directory,
            rollback_rate_factor=factor,
            save_checkpoints_steps=EVERY,
            keep_checkpoint_max=4,
            **changes,
        )
        run_task(
            RunModel(RegressionTask(CONFIG), None),
            settings,
            optimization_settings(num_train_steps=steps, learning_rate=RATE, schedule="constant"),
            runtime_settings(precision="fp32", native_ops=False),
            batches=batches,
            max_seq_length=1,
        )
        return tmp_path / directory

    return train


def in_numpy(start, updates):
    """Kernel and bias after AdamW with (position, learning rate) of each update."""
    weights = np.append(start["line/kernel"][:, 0], start["line/bias"]).astype(np.float64)
    m, v = np.zeros(4), np.zeros(4)
    decay = np.array([0.01, 0.01, 0.01, 0.0])
    for position, rate in updates:
        data = batch(position, ())
        x = np.append(data["x"], np.ones([BATCH, 1]), axis=1).astype(np.float64)
        gradient = 2 * (x @ weights - data["y"]) @ x / BATCH
        gradient *= min(1.0, 1.0 / np.linalg.norm(gradient))
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        weights -= rate * (m / (np.sqrt(v) + 1e-6) + decay * weights)
    return weights


def assert_weights(output_dir, updates):
    found = variables_of(output_dir / f"model.ckpt-{STEPS}")
    expected = in_numpy(variables_of(output_dir / "model.ckpt-0"), updates)
    weights = np.append(found["line/kernel"][:, 0], found["line/bias"])
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    return found


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# The update after step 6 fails on its batch, and the checkpoint before it is that of step 4.
ONCE = [(p, RATE) for p in range(4)] + [(p, RATE * FACTOR) for p in range(7, 13)]


def test_a_run_goes_on_from_its_last_checkpoint_with_the_next_batch(train, capsys):
    output_dir = train(6)
    found = assert_weights(output_dir, ONCE)
    assert found["training/skipped_updates"] == 3, "two that were lost and one that was skipped"
    assert found["training/consumed_sequences"] == 13 * BATCH
    log = lines_of(output_dir / "log.jsonl")
    assert [line["step"] for line in log] == list(range(1, STEPS + 1))
    rates = [line["learning_rate"] for line in log]
    assert rates == pytest.approx([RATE] * 4 + [RATE * FACTOR] * 6)
    assert log[-1]["skipped_updates"] == 3
    shown = capsys.readouterr().out
    [line] = [line for line in shown.splitlines() if "rolled back to" in line]
    assert line.startswith("the loss or a gradient is not finite in the update after step 6 ")
    assert f"the batch is in {output_dir / 'nonfinite_6'}; rolled back to " in line
    assert f"{output_dir / 'model.ckpt-4'} (2 updates are lost), the learning rate is" in line
    assert "multiplied by 0.5 (0.5 of the schedule's)" in line
    assert line.endswith("(roll-back 1 of at most 3)")
    assert "1 of 13 updates were skipped" in shown
    assert "2 updates were applied and lost in 1 roll-back\n" in shown
    record = json.loads((output_dir / "run.json").read_text())
    assert record["ledger"]["learning_rate"]["factor_after_rollbacks"] == FACTOR
    assert record["ledger"]["consumption"]["sequences"] == 13 * BATCH
    totals = record["training"]
    assert (totals["sequences"], totals["lost_updates"], totals["rollbacks"]) == (13 * BATCH, 2, 1)
    [entry] = read_rollbacks(output_dir)
    assert entry == Rollback(4, 6, 7, 7 * BATCH, FACTOR)
    events = [
        event
        for path in sorted(output_dir.glob("events.*"))
        for event in tf.train.summary_iterator(str(path))
    ]
    restarts = [event.step for event in events if event.HasField("session_log")]
    assert restarts[-1] == 5, "TensorBoard leaves out what it had from there on"


def test_without_the_flag_a_run_stops(train):
    with pytest.raises(UserError, match="no weight was changed by it: lower --learning_rate"):
        train(6, factor=None)


class Interruption:
    """Ends the process, so to speak, before or after a step of a roll-back."""

    def __init__(self, monkeypatch, name, *, after):
        self.monkeypatch, self.name, self.after = monkeypatch, name, after
        self.usual = getattr(rollback, name)
        monkeypatch.setattr(rollback, name, self)

    def __call__(self, *arguments):
        self.monkeypatch.setattr(rollback, self.name, self.usual)
        if self.after:
            self.usual(*arguments)
        raise InterruptedError


@pytest.mark.parametrize(
    ("name", "after"),
    [
        pytest.param("write_rollbacks", False, marks=pytest.mark.exhaustive),
        ("write_rollbacks", True),
        ("go_back_to", True),
        pytest.param("find_start", False, marks=pytest.mark.exhaustive),
    ],
)
def test_interrupted_anywhere_it_ends_the_same(train, monkeypatch, name, after):
    Interruption(monkeypatch, name, after=after)
    # The second time there is no checkpoint since the first one: it goes back to the one before.
    with pytest.raises(InterruptedError):
        train(6, 9)
    output_dir = train(6, 9)
    assert_weights(output_dir, [(p, RATE * FACTOR**2) for p in range(10, 20)])
    assert [line["step"] for line in lines_of(output_dir / "log.jsonl")] == list(range(1, 11))
    kept = sorted(int(path.stem.split("-")[1]) for path in output_dir.glob("model.ckpt-*.index"))
    assert kept == [0, 4, 8, 10]


@pytest.mark.parametrize("removed", [False, True])
def test_killed_between_the_record_and_the_checkpoints_it_goes_back(train, monkeypatch, removed):
    """With a checkpoint after the one that it goes back to."""
    Interruption(monkeypatch, "go_back_to", after=removed)
    monkeypatch.setattr(rollback, "last_good", lambda checkpoints, _: checkpoints[0])
    with pytest.raises(InterruptedError):
        train(6)
    output_dir = train(6)
    assert_weights(output_dir, [(p, RATE * FACTOR) for p in range(7, 17)])


def test_a_resumed_run_keeps_the_smaller_rate(train, capsys):
    train(6, steps=8)
    capsys.readouterr()
    output_dir = train(6, factor=None)
    assert_weights(output_dir, ONCE)
    assert "after 1 roll-back the learning rate is 0.5 of the schedule's" in capsys.readouterr().out
    log = lines_of(output_dir / "log.jsonl")
    assert log[-1]["learning_rate"] == pytest.approx(RATE * FACTOR)


@pytest.mark.slow
def test_it_gives_up_after_some_roll_backs_and_when_started_again(train):
    for _ in range(2):
        with pytest.raises(UserError, match=r"; after 2 roll-backs, .*\(--max_rollbacks\)"):
            train(*range(6, 100), max_rollbacks=2)
    output_dir = train(max_rollbacks=2)
    assert len(read_rollbacks(output_dir)) == 2
    assert sorted(path.name for path in output_dir.glob("nonfinite_*")) == [
        "nonfinite_0", "nonfinite_4", "nonfinite_6"
    ]  # fmt: skip


def test_a_run_does_not_resume_from_infinite_weights(train):
    output_dir = train(steps=4)
    for step in (0, 4):
        path = output_dir / f"model.ckpt-{step}"
        arrays = variables_of(path)
        arrays["line/bias"][:] = np.inf
        write_checkpoint(str(path), arrays)
    with pytest.raises(UserError, match="values of line/bias are NaN or infinite"):
        train()
    assert not (output_dir / RECORD_NAME).exists()


def test_there_may_be_no_checkpoint_to_roll_back_to(train, monkeypatch):
    monkeypatch.setattr("bert_tf.train.rollback.last_good", lambda *_: None)
    with pytest.raises(UserError, match="finite weights only, so there is none to roll back to"):
        train(6)


def saved(directory, *steps, **values):
    for step in steps:
        weights = np.float32(values.get(f"at_{step}", 1.0))
        write_checkpoint(str(directory / f"model.ckpt-{step}"), {"w": np.full(3, weights)})
    return [str(directory / f"model.ckpt-{step}") for step in steps]


def test_the_last_good_checkpoint(tmp_path):
    found = saved(tmp_path, 2, 4, 6, at_6=np.nan)
    before = [Rollback(4, 9, 10, 40, 0.5)]
    assert last_good(found, []) == found[1]
    assert last_good(found[:2], before) == found[0], "none was written since the roll-back"
    assert last_good(found[1:2], before) == found[1], "there is no other"
    assert last_good(found[:2], [Rollback(2, 3, 10, 40, 0.5)]) == found[1]
    assert last_good(found[2:], []) is None
    (tmp_path / "model.ckpt-4.index").write_bytes(b"")
    assert last_good(found, []) == found[0]


@pytest.mark.parametrize(
    "content",
    ["", "{}", '{"rollbacks": [{}]}', '{"rollbacks": [{"step": 1, "failed_step": 2, '
     '"data_position": 3, "consumed_sequences": 4, "rate_factor": 2.0}]}'],
)  # fmt: skip
def test_a_damaged_record_is_one_sentence(train, content):
    output_dir = train(steps=1)
    (output_dir / RECORD_NAME).write_text(content)
    with pytest.raises(UserError, match=f"record of roll-backs: .*{RECORD_NAME}"):
        find_start(output_dir)
