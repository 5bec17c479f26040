"""Weights of a model that only predicts: cast to the type of their products once and kept."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.model.variables import Variables


def with_cast_kernels(variables: Variables, dtype: tf.DType) -> Variables:
    """The variables, with a copy in ``dtype`` for each kernel of a dense layer of another type.

    Copies are local variables, which checkpoints leave out; to be initialized when the variables
    are. A batch of a sequence or two would take most of its time to cast the kernels.
    """

    def kept(variable: tf.Variable) -> tf.Variable:
        if not variable.op.name.endswith("/kernel") or variable.dtype == dtype:
            return variable
        return tf.Variable(
            tf.cast(variable.read_value(), dtype),
            trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
            name=f"{variable.op.name}_{dtype.name}",
        )

    return Variables({variable.op.name: kept(variable) for variable in variables.all()})
