"""Ten updates of a small network, for several kinds of training and cuts of the global batch.

Run under mpirun by the tests beside it: ``python updates_program.py OUT.npz GROUPS KIND...`` runs
every cut of each kind for the number of ranks that there are. One process runs them all, because
importing TensorFlow takes longer than any of them. GROUPS is what gradients are sent in, 0 to let
Horovod fuse what is ready, "auto" for what a run does by itself. Rank 0 writes, under
``KIND/CUT/...``, what each update did; the operations of a run have the name scope ``KIND.CUT``.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.config.ramps import Ramp
from bert_tf.config.settings import CommunicationSettings
from bert_tf.model.compilation import compiled_functions
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.ranks.connect import connect
from bert_tf.records.layouts import LABEL_IDS, WORD_STARTS
from bert_tf.tasks.classification.task import LABELS, ClassificationTask
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.distillation.task import DistillationTask
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.replaced_tokens.objective import ReplacedTokens
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tuning.arithmetic import SessionSettings, reason_against_native_ops, session_config
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.kernels import kernels_for
from bert_tf.update.loss_scale import DynamicLossScale, LossScale
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.train_op import UpdateSettings, build_train_op
from tests.helpers import rounding

UPDATES = 10
GLOBAL_BATCH = 8
LEARNING_RATE = 1e-3
CLIP_NORM = 0.5
S, P, V, CLASSES = 16, 4, 50, 3
# A gradient passes through some 16 products, forwards and backwards; the last one sums over the
# tokens of the global batch, more than any other.
PRODUCTS, TERMS = 16, GLOBAL_BATCH * S
OF_GRADIENTS = rounding.of_products(PRODUCTS, TERMS)


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is trained, and how."""

    optimizer: str = "adam"
    dropout: float = 0.0
    precision: str = "fp32"
    task: str = "pretraining"
    allreduce_every_micro_batch: bool = False
    native: bool | None = None  # what training would take
    xla: bool = False
    recompute: bool = False
    sizes: Ramp | None = None  # of the global batch
    sharded: bool = False
    shrinks_scale: bool = False  # from a loss scale that overflows


OPTIMIZERS = {
    "adam": ("adam", {}),
    "lamb": ("lamb", {}),
    "muon": ("muon", {}),
    "lans": ("lans", {}),
    "nvlamb": ("lamb", {"prenormalize": True}),
}
KINDS = {
    "adam": Kind(),
    "adam-dropout": Kind(dropout=0.1),
    "every-cut": Kind(dropout=0.1),
    "lamb-dropout": Kind("lamb", dropout=0.1),
    "lans": Kind("lans"),
    "nvlamb": Kind("nvlamb"),
    "muon": Kind("muon"),
    "bf16": Kind(dropout=0.1, precision="bf16"),
    "fp16": Kind(dropout=0.1, precision="fp16"),
    "squad": Kind(dropout=0.1, task="squad"),
    "distillation": Kind(dropout=0.1, task="distillation"),
    "electra": Kind(dropout=0.1, task="electra"),
    "tensorflow": Kind(dropout=0.1, native=False),
    "ramp": Kind(dropout=0.1, sizes=Ramp((GLOBAL_BATCH // 2, GLOBAL_BATCH), (4,))),
    "every-micro-batch": Kind(allreduce_every_micro_batch=True),
    "fp16-overflow": Kind(precision="fp16", shrinks_scale=True),
    "lamb": Kind("lamb"),
    "classes": Kind(dropout=0.1, task="classes"),
    "tags": Kind(dropout=0.1, task="tags"),
}
# Compiled kind -> the kind that it is compared with.
UNCOMPILED = {
    "xla": "tensorflow",
    "xla-every-micro-batch": "every-micro-batch",
    "xla-lamb": "lamb-dropout",
    "xla-overflow": "fp16-overflow",
    "xla-recompute": "tensorflow",
    **{
        f"xla-{kind}": kind
        for kind in (
            *("squad", "classes", "tags", "distillation", "electra"),
            *("lans", "nvlamb", "muon", "bf16", "fp16", "ramp"),
        )
    },
}
KINDS.update({
    name: dataclasses.replace(KINDS[kind], native=False, xla=True, recompute="recompute" in name)
    for name, kind in UNCOMPILED.items()
})  # fmt: skip
SHARDED = {name: f"{name}-sharded" for name in KINDS if not name.endswith("micro-batch")}
KINDS.update({n: dataclasses.replace(KINDS[name], sharded=True) for name, n in SHARDED.items()})


def cuts(ranks, name):
    """(micro batch, accumulation steps) that make the global batch with so many ranks.

    One kind has all of them. Two are enough for the others: without a loop over micro batches and
    with. Ranks divide a batch that grows by micro batches, so there is no cut without a loop.
    """
    share = GLOBAL_BATCH // ranks
    counts = (1, 2, 4, 8) if name == "every-cut" else (1, 4)
    counts = counts[1:] if KINDS[name].sizes and ranks > 1 else counts
    return [(share // steps, steps) for steps in counts if steps <= share]


def global_batches(task):
    """[updates, 8, ...] sequences with unequal numbers of tokens and of masked words."""
    rng = np.random.default_rng(7)
    shape = [UPDATES, GLOBAL_BATCH]
    lengths = rng.integers(6, S + 1, shape)
    features = {
        "input_ids": rng.integers(5, V, [*shape, S]),
        "input_mask": (np.arange(S) < lengths[..., None]).astype(np.int32),
        "segment_ids": (np.arange(S) >= lengths[..., None] // 2).astype(np.int32),
    }
    if task == "squad":
        first = rng.integers(0, 3, [*shape, 1])
        return {
            **features,
            "start_positions": first,
            "end_positions": first + rng.integers(0, 3, [*shape, 1]),
        }
    if task == "classes":
        return {**features, LABELS: rng.integers(0, CLASSES, [*shape, 1]).astype(np.float32)}
    if task == "tags":
        starts = features["input_mask"] * rng.integers(0, 2, [*shape, S])
        starts[:, :, 1] = 1
        labels = starts * rng.integers(0, CLASSES, [*shape, S])
        return {**features, WORD_STARTS: starts, LABEL_IDS: labels}
    predictions = rng.integers(1, P + 1, shape)
    positions = np.sort(rng.integers(1, 6, [*shape, P]), axis=-1)
    if task == "electra":  # what is replaced there must not depend on an order
        positions = np.where(np.arange(P) < predictions[..., None], np.arange(1, P + 1), 0)
    return {
        **features,
        "masked_lm_positions": positions,
        "masked_lm_ids": rng.integers(5, V, [*shape, P]),
        "masked_lm_weights": (np.arange(P) < predictions[..., None]).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, [*shape, 1]),
    }


def make_network(kind, *, native, seed):
    config = BertConfig(
        vocab_size=V,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=S,
        hidden_dropout_prob=kind.dropout,
        attention_probs_dropout_prob=kind.dropout,
    )
    options = ForwardOptions(
        policy_for(kind.precision), recompute=kind.recompute, compiled=kind.xla
    ).with_native_layers(native)
    return create_network(TASKS[kind.task](config), options, seed=seed)


def make_distillation(config):
    """The task of a student whose teacher has two layers."""
    taller = dataclasses.replace(config, num_hidden_layers=2)
    tasks = (
        PretrainingTask(network, next_sentence=False, score_all_tokens=True)
        for network in (config, taller)
    )
    return DistillationTask(*tasks, DistillationSettings("teacher", top_k_targets=20))


def make_electra(config):
    """The task of a discriminator with a generator of half its width."""
    return ReplacedTokens(generator_hidden_size=0.5).task(config)


TASKS = {
    "pretraining": PretrainingTask,
    "classes": functools.partial(ClassificationTask, num_classes=CLASSES),
    "tags": functools.partial(TaggingTask, num_classes=CLASSES),
    "squad": SpanTask,
    "distillation": make_distillation,
    "electra": make_electra,
}


def run_updates(ranks, kind, plan, scope):
    """What ten updates did, as arrays by name; everything of the network in one row."""
    batches = global_batches(kind.task)
    reason = reason_against_native_ops(kind.native, has_gpu=False, ranks=ranks)
    kernels = kernels_for(reason)
    session_settings = SessionSettings(ranks.threads)
    if plan.accumulation_steps > 1:  # without a loop there is one micro batch, of any size
        plan = dataclasses.replace(plan, sizes=kind.sizes)

    def mine(name, number):
        size = (kind.sizes.at(number) if kind.sizes else GLOBAL_BATCH) // ranks.world_size
        return batches[name][number, ranks.rank * size :][:size]

    with tf.Graph().as_default(), tf.name_scope(scope):
        fed = {
            name: tf.placeholder(
                tf.float32 if value.dtype == np.float32 else tf.int32,
                [None if kind.sizes else plan.rank_batch_size, *value.shape[2:]],
                name=name,
            )
            for name, value in batches.items()
        }
        # What other ranks start from is to be that of rank 0, a teacher included.
        network = make_network(kind, native=reason is None, seed=3 + ranks.rank)
        rate = tf.constant(LEARNING_RATE)
        name, options = OPTIMIZERS[kind.optimizer]
        optimizer = Optimizer(
            name,
            rate,
            weight_decay=0.01,
            kernels=kernels,
            ranks=ranks,
            shard_state=kind.sharded,
            **options,
        )
        # A scale that grows on the way and that nothing overflows with, unless it is to.
        initial = 2.0**24 if kind.shrinks_scale else 2.0**10
        scale = DynamicLossScale(initial, period=4) if kind.precision == "fp16" else LossScale()
        outputs = build_train_op(
            network,
            fed,
            plan=plan,
            optimizer=optimizer,
            learning_rate=rate,
            loss_scale=scale,
            ranks=ranks,
            settings=UpdateSettings(
                clip_norm=CLIP_NORM,
                seed=11,
                allreduce_every_micro_batch=kind.allreduce_every_micro_batch,
            ),
        )
        variables = tf.trainable_variables()
        weights = _in_a_row(variables)
        slots = _in_a_row(whole_slots(optimizer, variables, outputs, ranks))
        update = [
            _in_a_row(whole_gradients(outputs, variables, ranks)),
            outputs.gradient_norm,
            outputs.loss_scale,
            outputs.train_op,
        ]
        functions = compiled_functions(tf.get_default_graph())
        config = session_config(session_settings)
        initial = [tf.global_variables_initializer(), tf.local_variables_initializer()]
        hooks = ranks.broadcast_hooks()
        for hook in hooks:
            hook.begin()
        with tf.Session(config=config) as session:
            session.run(initial)
            for hook in hooks:
                hook.after_create_session(session, None)
            first = session.run(weights)
            done = [
                session.run(update, {fed[name]: mine(name, number) for name in fed})
                for number in range(UPDATES)
            ]
            last, state, last_slots = session.run([weights, tf.global_variables(), slots])
    gradients, norms, scales, _ = zip(*done)
    return {
        "names": np.array([v.op.name for v in variables]),
        "sizes": np.array([v.shape.num_elements() for v in variables]),
        "gradients": np.stack(gradients),
        "norms": np.stack(norms),
        "scales": np.stack(scales),
        "first_weights": first,
        "last_weights": last,
        "slots": last_slots,
        "states": np.array(ranks.gather(hashlib.sha256(b"".join(state)).hexdigest())),
        "functions": functions,
    }


def whole_slots(optimizer, variables, outputs, ranks):
    """All slots in the order of variables, gathered where ranks have parts."""
    if optimizer.shards is None:
        return [slot for variable in variables for slot in optimizer.slots_of(variable)]
    return [
        ranks.concatenate(tf.reshape(slot.variable, [-1]), name=f"{slot.name}/whole")
        for slot in outputs.slots
    ]


def whole_gradients(outputs, variables, ranks):
    return [
        gradient
        if gradient.shape == variable.shape
        else ranks.concatenate(gradient, name=f"{variable.op.name}/gradient")
        for gradient, variable in zip(outputs.gradients, variables)
    ]


def _in_a_row(tensors):
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def main(out, groups, *names):
    launched = "OMPI_COMM_WORLD_SIZE" in os.environ
    communication = CommunicationSettings(groups=None if groups == "auto" else int(groups))
    ranks = connect("horovod" if launched else None, communication=communication)
    found = {}
    for name in names:
        for micro, steps in cuts(ranks.world_size, name):
            plan = BatchPlan(micro, steps, ranks.world_size)
            assert plan.global_batch_size == GLOBAL_BATCH
            cut = f"{micro}x{steps}x{ranks.world_size}"
            for what, value in run_updates(ranks, KINDS[name], plan, f"{name}.{cut}").items():
                found[f"{name}/{cut}/{what}"] = value
    if ranks.is_chief:
        np.savez(out, **found)


if __name__ == "__main__":
    tf.disable_eager_execution()
    main(*sys.argv[1:])
