"""Labelled words: files, sequences and scores, without TensorFlow."""
