"""The evaluation of pre-training on held-out records."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.input.evaluation import evaluation_dataset
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.input.pipeline import PretrainingRecords
from bert_tf.model.task import Task
from bert_tf.ranks.ranks import Ranks
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.train.evaluation import LossEvaluation


def loss_evaluation(
    settings: PretrainingSettings, task: Task, records: PretrainingRecords, ranks: Ranks
) -> LossEvaluation:
    """The evaluation on held-out ``records``."""
    global_batch_size = settings.run.evaluation.eval_batch_size * ranks.world_size
    batch = GlobalBatchSlice(global_batch_size, ranks.rank, ranks.world_size)

    def eval_input() -> tf.data.Dataset:
        return evaluation_dataset(records, batch, seed=settings.run.seed)

    return LossEvaluation(
        eval_input, ranks=ranks, task=task, max_steps=settings.run.evaluation.max_eval_steps
    )
