"""SQuAD: examples, windows, features, answers and scores; no TensorFlow is needed."""
