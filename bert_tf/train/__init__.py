"""From settings to a trained model: plan, updates, evaluation, checkpoints, logs, the ledger."""
