"""Casts weights for predictions once, to the data type of their products."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.model.variables import Variables


def with_cast_kernels(variables: Variables, dtype: tf.DType) -> Variables:
    """Returns the variables with dense kernels of other types replaced by copies in ``dtype``.

    The copies are local variables, which are not saved in checkpoints; initialize them after the
    variables. Without them, casting kernels would dominate the time of a small batch.
    """

    def cast_kernel(variable: tf.Variable) -> tf.Variable:
        if not variable.op.name.endswith("/kernel") or variable.dtype == dtype:
            return variable
        return tf.Variable(
            tf.cast(variable.read_value(), dtype),
            trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
            name=f"{variable.op.name}_{dtype.name}",
        )

    return Variables({variable.op.name: cast_kernel(variable) for variable in variables.all()})
