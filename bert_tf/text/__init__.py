"""Tokenizers with a small common interface, and their vocabulary files."""
