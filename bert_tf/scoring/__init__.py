"""Scoring texts with a masked language model: texts, masks, definitions and files.

This package does not need TensorFlow.
"""
