"""GLUE: files, sequences and metrics, without TensorFlow."""
