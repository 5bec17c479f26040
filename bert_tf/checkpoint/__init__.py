"""Checkpoints of all formats, read and written strictly and with a report."""
