"""A teacher: its losses, its targets on disk, and the student that learns from it."""
