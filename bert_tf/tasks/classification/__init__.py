"""Classification and regression of sentences and pairs, on GLUE's files."""
