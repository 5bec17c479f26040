"""Ten updates of a small network, as one rank of a job; rank 0 writes what every update did.

Run under mpirun by test_equivalence.py: ``python updates_program.py OUT.npz MICRO STEPS HOROVOD
OPTIMIZER DROPOUT EVERY_MICRO_BATCH``.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.config.bert_config import BertConfig
from bert_tf.model.precision import policy_for
from bert_tf.tasks.pretraining import PretrainingObjective
from bert_tf.training.batch_plan import BatchPlan
from bert_tf.training.distribution import connect
from bert_tf.training.loss_scale import NoLossScale
from bert_tf.training.optimizers import AdamW, Lamb
from bert_tf.training.train_op import UpdateSettings, build_train_op

UPDATES = 10
GLOBAL_BATCH = 4
S, P, V = 16, 4, 50


def global_batches():
    """[updates, 4, ...] sequences with unequal numbers of masked words; the same in every run."""
    rng = np.random.default_rng(7)
    shape = [UPDATES, GLOBAL_BATCH]
    lengths = rng.integers(6, S + 1, shape)
    predictions = rng.integers(1, P + 1, shape)
    return {
        "input_ids": rng.integers(5, V, [*shape, S]),
        "input_mask": (np.arange(S) < lengths[..., None]).astype(np.int32),
        "segment_ids": (np.arange(S) >= lengths[..., None] // 2).astype(np.int32),
        "masked_lm_positions": np.sort(rng.integers(1, 6, [*shape, P]), axis=-1),
        "masked_lm_ids": rng.integers(5, V, [*shape, P]),
        "masked_lm_weights": (np.arange(P) < predictions[..., None]).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, [*shape, 1]),
    }


def config(dropout):
    return BertConfig(
        vocab_size=V,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=S,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )


def main(out, micro, steps, horovod, optimizer_name, dropout, every_micro_batch):
    ranks = connect(horovod=horovod == "1")
    plan = BatchPlan(int(micro), int(steps), ranks.world_size)
    assert plan.global_batch_size == GLOBAL_BATCH
    batches = global_batches()
    start = ranks.rank * plan.rank_batch_size
    mine = {k: v[:, start : start + plan.rank_batch_size] for k, v in batches.items()}
    fed = {
        name: tf.placeholder(
            tf.float32 if value.dtype == np.float32 else tf.int32, value.shape[1:], name=name
        )
        for name, value in mine.items()
    }
    objective = PretrainingObjective(
        config(float(dropout)), policy_for("fp32"), masked_lm=True, next_sentence=True, seed=3
    )
    objective.create_variables()
    rate = tf.constant(1e-3)
    optimizer = {"adam": AdamW, "lamb": Lamb}[optimizer_name](rate, weight_decay=0.01)
    outputs = build_train_op(
        objective,
        fed,
        plan=plan,
        optimizer=optimizer,
        learning_rate=rate,
        loss_scale=NoLossScale(),
        ranks=ranks,
        settings=UpdateSettings(
            clip_norm=0.5, seed=11, allreduce_every_micro_batch=every_micro_batch == "1"
        ),
    )
    variables = tf.trainable_variables()
    found = {"names": np.array([v.op.name for v in variables])}
    with tf.train.MonitoredSession(hooks=ranks.broadcast_hooks()) as session:
        for update in range(UPDATES):
            _, gradients, norm = session.run(
                [outputs.train_op, outputs.gradients, outputs.gradient_norm],
                {fed[name]: mine[name][update] for name in fed},
            )
            found[f"norm_{update}"] = norm
            found.update({f"gradient_{update}_{i}": g for i, g in enumerate(gradients)})
        for i, value in enumerate(session.run(variables)):
            found[f"weight_{i}"] = value
    if ranks.is_chief:
        np.savez(out, **found)


if __name__ == "__main__":
    tf.disable_eager_execution()
    main(*sys.argv[1:])
