"""The tasks: pre-training and fine-tuning jobs, with their networks, losses and metrics."""
