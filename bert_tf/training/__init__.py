"""Running a job: plans, resuming, the trainer with its hooks, logs and the ledger."""
