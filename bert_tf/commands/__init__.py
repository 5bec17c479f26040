"""Commands that people type, beside the entry scripts."""
