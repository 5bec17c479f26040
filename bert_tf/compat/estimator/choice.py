"""Chooses between TensorFlow's Estimator and ours."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.compat.estimator import estimator as our_estimator

# TensorFlow includes Estimators up to 2.15, loaded on the first use of a name in tf.estimator.
tf_estimator = getattr(tf, "estimator", our_estimator)
