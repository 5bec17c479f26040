"""The tasks, a folder each: flags, settings, data, graph, run and outputs."""
