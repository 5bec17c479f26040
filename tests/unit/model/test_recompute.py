"""Layers recomputed in the backward pass: the same bits, and nothing kept unnecessarily."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from bert_tf.diagnose.memory import kept_bytes, recomputed_bytes
from bert_tf.model.dropout import Dropout
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.recompute import SCOPE
from bert_tf.model.variables import create_variables
from bert_tf.update.gradients import accumulate_gradients
from bert_tf.update.kernels import TensorFlowKernels
from tests.helpers.forward_passes import pretraining_specs, sums_of_heads
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.objectives import differentiated

PRODUCTS = {"MatMul", "_MklMatMul", "_MklNativeFusedMatMul", "BatchMatMulV2", "_MklBatchMatMulV2"}
# In a layer: of query, key and value together, two of attention, which is one native operation, its
# output, two feed-forward layers.
PRODUCTS_OF_A_LAYER = {"plain": 6, "native": 4}

forms = pytest.mark.parametrize(
    "form",
    [
        pytest.param("plain", marks=pytest.mark.slow),
        pytest.param("native", marks=requires_native_ops),
    ],
)


class Built:
    """The gradients of the small batch in a separate graph, and the trace of a run."""

    def __init__(self, config, batch, options, *, recompute, training=True, micro_batches=1):
        with tf.Graph().as_default() as graph:
            variables = create_variables(
                pretraining_specs(config), initializer_range=config.initializer_range
            )
            # Fed, so that nothing can be computed as a constant before the run.
            fed = {n: tf.placeholder_with_default(v, v.shape) for n, v in batch.items()}
            place = tf.placeholder_with_default(np.int64(3), [])
            examples = len(batch["input_ids"]) // micro_batches

            def micro_batch(index):
                start = index * examples
                part = {}
                for name, value in fed.items():
                    part[name] = value[start : start + examples]
                    part[name].set_shape([examples, *value.shape[1:]])
                dropout = Dropout(
                    5, data_position=place, first_example=tf.cast(start, tf.int64) + 7
                )
                used = dataclasses.replace(
                    options, dropout=dropout if training else None, recompute=recompute
                )
                self.loss = sums_of_heads(variables, config, part, used).total_loss()
                self.forward = graph.get_operations()
                return self.loss, tf.stack([self.loss])

            self.gradients, metrics = accumulate_gradients(
                differentiated(micro_batch, variables.all()),
                accumulation_steps=micro_batches,
                num_metrics=1,
                variables=variables.all(),
                add=TensorFlowKernels().add,
            )
            self.metrics = metrics
            made = set(self.forward)
            self.backward = [op for op in graph.get_operations() if op not in made]
            self.initializer = tf.global_variables_initializer()
        self.graph = graph

    def run(self, *, regroup_sums=False):
        """Loss and gradients as numpy; ``trace`` is set."""
        config = tf.ConfigProto(inter_op_parallelism_threads=2)
        if not regroup_sums:
            # TensorFlow's rewrites change the order of a sum if its terms have other readers.
            config.graph_options.rewrite_options.arithmetic_optimization = (
                rewriter_config_pb2.RewriterConfig.OFF
            )
        options = tf.RunOptions(
            trace_level=tf.RunOptions.SOFTWARE_TRACE, output_partition_graphs=True
        )
        self.trace = tf.RunMetadata()
        with tf.Session(graph=self.graph, config=config) as session:
            session.run(self.initializer)
            return session.run(
                [self.metrics, *self.gradients], options=options, run_metadata=self.trace
            )

    def executed_products(self):
        """The start of each product that is left after TensorFlow's rewrites, by name."""
        nodes = [node for part in self.trace.partition_graphs for node in part.node]
        products = {node.name for node in nodes if node.op in PRODUCTS}
        return {
            node.node_name: node.all_start_micros
            for device in self.trace.step_stats.dev_stats
            for node in device.node_stats
            if node.node_name in products
        }


@pytest.mark.slow
@forms
@pytest.mark.parametrize(
    ("precision", "micro_batches"),
    [("fp32", 1), pytest.param("bf16", 2, marks=pytest.mark.exhaustive)],
)
def test_gradients_are_the_same_bits(config, batch, precision, micro_batches, form):
    options = ForwardOptions(policy_for(precision), native_layers=form == "native")
    # Native operations leave no sums to reorder in a layer, so the session is as in training.
    usual = {"regroup_sums": form == "native"}
    kept, again = (
        Built(config, batch, options, recompute=recompute, micro_batches=micro_batches).run(**usual)
        for recompute in (False, True)
    )
    assert all(np.any(gradient != 0) for gradient in kept)
    for expected, found in zip(kept, again):
        np.testing.assert_array_equal(found, expected)


@forms
def test_layers_are_recomputed_only_when_needed(config, batch, form):
    kept, again = (
        Built(config, batch, ForwardOptions(native_layers=form == "native"), recompute=recompute)
        for recompute in (False, True)
    )
    kept.run(regroup_sums=True)
    again.run(regroup_sums=True)
    before, products = kept.executed_products(), again.executed_products()
    second_time = [began for name, began in products.items() if f"/{SCOPE}/" in name]
    first_time = [began for name, began in products.items() if name.startswith("bert/encoder/")]
    of_layers = PRODUCTS_OF_A_LAYER[form] * config.num_hidden_layers
    assert len(first_time) == of_layers
    assert len(products) == len(before) + of_layers
    assert min(second_time) > max(first_time)


@forms
def test_only_the_inputs_of_layers_are_kept(config, batch, form):
    again = Built(config, batch, ForwardOptions(native_layers=form == "native"), recompute=True)
    of_layers = [op for op in again.forward if "/layer_" in op.name]
    B, S = batch["input_ids"].shape
    layer_input = 4 * B * S * config.hidden_size
    kept = kept_bytes(of_layers, again.backward)
    # The embeddings keep the first layer's input; the heads keep what they read of the last output.
    assert kept == [layer_input] * (config.num_hidden_layers - 1)
    parts = recomputed_bytes(again.backward)
    assert len(parts) == config.num_hidden_layers
    without = Built(config, batch, ForwardOptions(native_layers=form == "native"), recompute=False)
    all_layers = kept_bytes(
        [op for op in without.forward if "/layer_" in op.name], without.backward
    )
    assert max(map(sum, parts)) < sum(all_layers)


def test_evaluation_is_left_alone(config, batch):
    with_flag = Built(config, batch, ForwardOptions(), recompute=True, training=False)
    without = Built(config, batch, ForwardOptions(), recompute=False, training=False)
    names = [op.name for op in with_flag.graph.get_operations()]
    assert names == [op.name for op in without.graph.get_operations()]
