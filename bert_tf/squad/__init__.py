"""SQuAD: examples, windows, features, answers and the report; no TensorFlow is needed."""
