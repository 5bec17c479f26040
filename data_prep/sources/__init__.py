"""Files that text is published in."""
