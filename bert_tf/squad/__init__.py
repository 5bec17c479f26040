"""SQuAD: examples, windows, features, answers and scores. This package does not need TensorFlow."""
