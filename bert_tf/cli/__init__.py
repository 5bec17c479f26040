"""Flags: how they are defined and read, and those that the training scripts share."""
