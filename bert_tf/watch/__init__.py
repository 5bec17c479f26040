"""Failure detection: what ranks hear of each other, and how they stop together."""
