"""Studies made once, whose results are in the documentation; each is a script."""
