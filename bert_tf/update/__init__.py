"""One update done right: gradients, their sum, optimizers, schedules, loss scales."""
