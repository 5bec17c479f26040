"""What serves the users of other programs."""
