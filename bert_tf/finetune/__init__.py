"""One engine for fine-tuning: flags, records, seeds and search, classes, evaluation, the run."""
