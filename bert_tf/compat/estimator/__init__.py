"""Estimators like ``tf.estimator``, for TensorFlow versions that no longer have it."""
