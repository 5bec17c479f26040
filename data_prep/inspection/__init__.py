"""What is in a data directory, and what is unusual about it."""
