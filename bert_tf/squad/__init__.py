"""SQuAD files: examples, windows, features, answers and the report. Nothing here imports TensorFlow."""
