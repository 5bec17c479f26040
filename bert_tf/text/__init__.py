"""Tokenizers with one small interface, and their vocabulary files."""
