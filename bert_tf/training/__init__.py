"""One update done right: schedules, optimizers, accumulation, distribution, hooks."""
