"""Classification and regression of sentences and sentence pairs, on GLUE's files."""
