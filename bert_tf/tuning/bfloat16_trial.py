"""Computes a layer in bfloat16: ``python -m bert_tf.tuning.bfloat16_trial``.

TensorFlow asks the processor which instructions it has; oneDNN can be limited to fewer, for
example by ONEDNN_MAX_CPU_ISA. If they disagree, a product can crash the whole process in C++, so
``speed_choice.py`` tries it in a process of its own.
"""

from __future__ import annotations

import resource
import sys

import tensorflow.compat.v1 as tf

from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.tuning.session import SessionSettings, session_config
from bert_tf.tuning.speed_probe import JobShapes, layer

# The exit status if TensorFlow refuses the layer; Python itself exits with 1 after other errors.
REFUSED = 3

_SHAPES = JobShapes(
    sequences=2,
    length=64,
    accumulation_steps=1,
    hidden_size=128,
    intermediate_size=512,
    heads=2,
    activation="gelu",
)


def main() -> int:
    """Runs the layer and its gradients once, as training would."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected and needs no core dump
    tf.disable_eager_execution()
    operation = layer(_SHAPES, ForwardOptions(policy_for("bf16")), _SHAPES.sequences)
    with tf.Session(config=session_config(SessionSettings(threads=1))) as session:
        session.run(tf.global_variables_initializer())
        try:
            session.run(operation)
        except tf.errors.OpError:
            return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
