"""What the trainer asks of rank 0 alone, and what it repeats after a kill. Training: end_to_end."""

import json

import pytest

from bert_tf.ranks.ranks import SingleProcess
from bert_tf.train.run_log import RunLog
from bert_tf.train.start_point import StartPoint
from bert_tf.train.trainer import Trainer
from tests.helpers.jobs import begun, job_of
from tests.helpers.settings import run_settings


class Ranks(SingleProcess):
    """A rank of several, which rank 0 sends ``broadcast_value``."""

    def __init__(self, rank, broadcast_value=None):
        self.rank, self.broadcast_value = rank, broadcast_value

    def broadcast(self, value):
        return value if self.is_chief else self.broadcast_value


class Measuring(Trainer):
    """A trainer that notes evaluations instead of making them."""

    def __init__(self, ranks, output_dir, *, step=0, every=2, patience=None):
        settings = run_settings(
            output_dir,
            do_train=True,
            do_eval=True,
            save_checkpoints_steps=1,
            eval_every_steps=every,
            early_stopping_evaluations=patience,
        )
        start = StartPoint("model.ckpt", step, step, step)
        log = RunLog(output_dir) if ranks.is_chief else None
        self._job = job_of(None, run=begun(settings=settings, ranks=ranks, start=start, log=log))
        self._last_results = {"global_step": 7, "loss": 1.0}
        self.evaluations = 0

    def evaluate(self):
        self.evaluations += 1


def test_other_ranks_directories_are_not_read_at_the_end(tmp_path):
    """A host's own disk may hold a directory of this name, with a list of what is gone."""
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    trainer = Measuring(Ranks(1, broadcast_value=7), tmp_path)
    assert trainer.evaluate_at_end() == {"global_step": 7, "loss": 1.0}
    assert trainer.evaluations == 0


@pytest.mark.parametrize(
    ("step", "every", "evaluated", "due"),
    [
        (4, 2, [0, 2], True),  # killed in the evaluation
        (4, 2, [0, 2, 4], False),
        (4, 2, [0, 2, 6], True),
        (5, 2, [0, 2, 4], False),  # told to stop between evaluations
        (4, None, [], False),
        (0, 2, [], False),  # that of the untrained network is the training's own
    ],
)
def test_an_evaluation_that_a_kill_interrupted_is_repeated(tmp_path, step, every, evaluated, due):
    lines = [json.dumps({"step": number, "loss": 1.0}) for number in evaluated]
    (tmp_path / "eval_log.jsonl").write_text("\n".join(lines) + '\n{"step": 4, "lo')
    trainer = Measuring(Ranks(0), tmp_path, step=step, every=every)
    trainer.catch_up_on_evaluation()
    assert trainer.evaluations == due


@pytest.mark.parametrize("broadcast_value", [False, True])
def test_rank_0_decides_whether_an_evaluation_is_repeated(tmp_path, broadcast_value):
    trainer = Measuring(Ranks(1, broadcast_value=broadcast_value), tmp_path, step=4)
    trainer.catch_up_on_evaluation()
    assert trainer.evaluations == broadcast_value
