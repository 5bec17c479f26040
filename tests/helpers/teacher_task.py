"""A task of two networks: one learns to compute what the other one, which is only read, does."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_output, bert_specs
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.losses import Sums
from bert_tf.model.variables import VariableSpec, frozen_specs

TEACHER = "teacher"


@dataclasses.dataclass(frozen=True)
class TeacherTask:
    config: BertConfig
    teacher: BertConfig

    heads: ClassVar = ()
    inputs: ClassVar = INPUTS
    terms: ClassVar = {"distance": ()}

    def specs(self) -> list[VariableSpec]:
        teacher = bert_specs(self.teacher, pooler=False)
        return [*bert_specs(self.config, pooler=False), *frozen_specs(teacher, prefix=TEACHER)]

    def outputs(self, variables, features, options):
        learnt = bert_output(variables, self.config, features, options).sequence_output
        without_dropout = options.with_dropout(None)
        with variables.scope(TEACHER) as teacher:
            known = bert_output(teacher, self.teacher, features, without_dropout).sequence_output
        return learnt, tf.stop_gradient(known)

    def weights(self, features):
        return {"distance": tf.cast(tf.reduce_sum(features["input_mask"]), tf.float32)}

    def losses(self, outputs, features, options):
        learnt, known = outputs
        at_tokens = tf.cast(features["input_mask"], tf.float32)
        distances = tf.reduce_mean(tf.square(learnt - known), axis=-1) * at_tokens
        return {"distance": Sums(tf.reduce_sum(distances), self.weights(features)["distance"], {})}

    def predictions(self, outputs, features, options):
        return {"sequence_output": outputs[0], "teacher_output": outputs[1]}

    def scores(self, sums):
        return {}
