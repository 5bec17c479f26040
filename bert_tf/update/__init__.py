"""One training update: gradient accumulation, optimizers, schedules, loss scaling."""
