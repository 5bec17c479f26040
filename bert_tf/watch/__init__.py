"""Failure detection: how ranks monitor each other, and how they stop together."""
