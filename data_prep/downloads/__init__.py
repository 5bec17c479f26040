"""Downloads of collections of text."""
