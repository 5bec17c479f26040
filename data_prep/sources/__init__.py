"""The file formats in which text is published."""
