"""A task that is no classification and has no BERT: a linear function of three numbers."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.model.config import BertConfig
from bert_tf.model.losses import Sums
from bert_tf.model.variables import VariableSpec


@dataclasses.dataclass(frozen=True)
class RegressionTask:
    config: BertConfig

    heads: ClassVar = ()
    inputs: ClassVar = ("x",)
    terms: ClassVar = {"rating": ("absolute_error",)}

    def specs(self):
        return [VariableSpec("line/kernel", (3, 1)), VariableSpec("line/bias", (1,), 0.0)]

    def outputs(self, variables, features, options):
        return (tf.matmul(features["x"], variables["line/kernel"]) + variables["line/bias"])[:, 0]

    def weights(self, features):
        return {"rating": tf.cast(tf.shape(features["y"])[0], tf.float32)}

    def losses(self, outputs, features, options):
        errors = outputs - features["y"]
        absolute = {"absolute_error": tf.reduce_sum(tf.abs(errors))}
        weight = self.weights(features)["rating"]
        return {"rating": Sums(tf.reduce_sum(tf.square(errors)), weight, absolute)}

    def predictions(self, outputs, features, options):
        return {"rating": outputs}

    def scores(self, sums):
        return {"rating_rmse": math.sqrt(sums["rating"].loss / sums["rating"].weight)}
