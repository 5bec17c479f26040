"""Finds, before a run is started, what will fail in it and what looks unwise."""
