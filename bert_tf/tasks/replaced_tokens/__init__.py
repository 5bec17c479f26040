"""Replaced-token detection: a discriminator learns from the words of a small generator."""
