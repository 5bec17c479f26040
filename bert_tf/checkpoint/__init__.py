"""Strict reading and writing of checkpoints in all formats, with reports."""
