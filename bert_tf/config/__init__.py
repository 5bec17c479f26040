"""Settings of a run, and the registries of optimizers and schedules."""
