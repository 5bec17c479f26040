"""The one place that says whose Estimator the jobs use."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.estimator import estimator as own

# TensorFlow has its own up to 2.15. It loads it when the first name in it is used.
tf_estimator = getattr(tf, "estimator", own)
