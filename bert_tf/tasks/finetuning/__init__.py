"""Shared parts of the fine-tuning tasks: models, records, seeds and predictions."""
