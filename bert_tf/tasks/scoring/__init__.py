"""Perplexities of texts under a masked language model."""
