"""What will go wrong in a run, and what looks unwise, found before it is started."""
