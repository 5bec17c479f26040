"""What stands beside weights: architecture, vocabulary, labels, run record; without TensorFlow."""
