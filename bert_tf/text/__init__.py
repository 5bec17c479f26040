"""Tokenizers behind one small interface, and the vocabulary files they read."""
