"""Utilities of every program: files, errors, locks, the console, progress, HTML pages."""
