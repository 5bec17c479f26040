"""Pre-train, distil and fine-tune BERT with TensorFlow 1.x-style Estimators."""

__version__ = "0.1.0"
