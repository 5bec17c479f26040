"""The text of templates that are part of a sentence."""
