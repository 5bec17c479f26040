"""GLUE: files, sequences and metrics; no TensorFlow is needed."""
