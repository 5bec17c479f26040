"""The files next to weights: architecture, vocabulary, labels, run record. Needs no TensorFlow."""
