"""What fine-tuning tasks share: models, records, seeds and predictions."""
