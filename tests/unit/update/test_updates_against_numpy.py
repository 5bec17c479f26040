"""Fifty whole updates against numpy: bfloat16 products, micro batches, clip, optimizer.

Each weight has a product of its own with the features of a single example, and counts of examples
are powers of two. So gradients of bfloat16 products are exactly the rounded features, and what is
compared is everything behind the backward pass: the sums over micro batches in float32, the clip,
and optimizers that read bfloat16.
"""

import types
from typing import ClassVar

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.losses import Sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import create_network
from bert_tf.model.variables import VariableSpec
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.loss_scale import LossScale
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.train_op import UpdateSettings, build_train_op
from tests.helpers import rounding
from tests.helpers.optimizer_reference import (
    CASES,
    SHAPES,
    Reference,
    global_norm,
    random_gradients,
    start_values,
)
from tests.helpers.tensors import set_variables

UPDATES, RATE = 50, 0.01
CHOSEN = [
    "AdamW with bias correction",
    "LAMB with bounds and clip",
    "LAMB with exclusions",
    "LAMB with normalised gradients",
    "LAMB with normalised gradients, bounds and exclusions",
    "LANS with bounds that adapts all",
    "LANS with factors and exclusions",
]


class ProductsTask:
    """The sum of all weights, each times the feature of its name."""

    config = types.SimpleNamespace(initializer_range=0.02)
    heads = inputs = ()
    terms: ClassVar = {"fit": ()}

    def __init__(self, product_type):
        self.product_type = product_type

    def specs(self):
        return [VariableSpec(name, shape, 0.0) for name, shape in SHAPES.items()]

    def weights(self, features):
        return {"fit": tf.cast(tf.shape(next(iter(features.values())))[0], tf.float32)}

    def outputs(self, variables, features, options):
        products = [
            tf.cast(variables[name], self.product_type) * tf.cast(feature, self.product_type)
            for name, feature in features.items()
        ]
        return tf.add_n([tf.reduce_sum(tf.cast(product, tf.float32)) for product in products])

    def losses(self, outputs, features, options):
        return {"fit": Sums(loss=outputs, weight=self.weights(features)["fit"], metrics={})}


@pytest.mark.parametrize(
    ("product_type", "steps"),
    [
        ("bfloat16", 1),
        ("float32", 4),
        pytest.param("bfloat16", 4, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("case", CHOSEN)
def test_fifty_updates_of_micro_batches(case, product_type, steps, kernels):
    optimizer, options, reference_options, clip_norm = CASES[case]
    product_type = tf.as_dtype(product_type)
    rng = np.random.RandomState(1)
    reference = Reference(start_values(), **reference_options)
    with tf.Graph().as_default(), tf.Session() as session:
        features = {n: tf.placeholder(tf.float32, [steps, *s]) for n, s in SHAPES.items()}
        network = create_network(ProductsTask(product_type), ForwardOptions(), seed=1)
        rate = tf.constant(RATE)
        update = build_train_op(
            network,
            features,
            plan=BatchPlan(1, steps, world_size=1),
            optimizer=Optimizer(optimizer, rate, kernels=kernels, **options),
            learning_rate=rate,
            loss_scale=LossScale(),
            ranks=SingleProcess(),
            settings=UpdateSettings(clip_norm=clip_norm),
        ).train_op
        session.run(tf.global_variables_initializer())
        set_variables(session, network.variables.all(), start_values())
        for step in range(UPDATES):
            examples = [random_gradients(rng) for _ in range(steps)]
            fed = {name: np.stack([example[name] for example in examples]) for name in SHAPES}
            session.run(update, {features[name]: fed[name] for name in SHAPES})
            rounded = {n: v.astype(product_type.as_numpy_dtype) for n, v in fed.items()}
            gradients = {n: v.astype(np.float64).mean(axis=0) for n, v in rounded.items()}
            trained = {n: g for n, g in gradients.items() if reference.rate_factor(n)}
            factor = 1.0 if clip_norm is None else min(1.0, clip_norm / global_norm(trained))
            reference.apply({n: g * factor for n, g in trained.items()}, RATE)
            weights = session.run({v.op.name: v for v in network.variables.trainable()})
            for name, expected in reference.weights.items():
                error = np.max(np.abs(weights[name] - expected)) / np.max(np.abs(expected))
                assert error <= rounding.of_updates(step + 1), f"{name} at step {step}"
