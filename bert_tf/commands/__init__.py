"""Command line tools, in addition to the entry scripts."""
