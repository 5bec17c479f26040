"""Replaced-token detection: a discriminator finds the tokens that a small generator replaced."""
