"""Computes a layer in bfloat16: ``python -m bert_tf.tuning.bfloat16_trial``.

TensorFlow asks the processor which instructions it has; oneDNN may be limited to fewer, by
ONEDNN_MAX_CPU_ISA for instance. Where they disagree, a product can end the whole process in C++, so
``speed_choice.py`` tries it in a process that may end.
"""

from __future__ import annotations

import resource
import sys

import tensorflow.compat.v1 as tf

from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.tuning.session import SessionSettings, session_config
from bert_tf.tuning.speed_probe import JobShapes, layer

# The exit status if TensorFlow refuses the layer; Python's own for other errors is 1.
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
    """Runs the layer with its gradients once, as training would."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no dump of a process that was to be tried
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
