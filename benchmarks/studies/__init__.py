"""One-off studies whose results are in the documentation; each module is a script."""
