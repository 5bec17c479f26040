"""Vectors of tokens and texts, computed from the layers of a trained network."""
