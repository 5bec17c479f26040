"""Failure detection: how ranks watch each other, and how they stop together."""
