"""Measuring what a job computes fastest with on this machine."""
