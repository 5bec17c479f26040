"""The tasks, one folder each: flags, settings, data, graph, run and outputs."""
