"""Collections of text, from other hosts."""
