"""Compatibility with other programs, for their users."""
