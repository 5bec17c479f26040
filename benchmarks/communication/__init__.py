"""Measures updates as ranks of a job, and models their communication."""
