"""Estimators for TensorFlows that have none: the names and the behaviour of ``tf.estimator``."""
