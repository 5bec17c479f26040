"""The page on a question answering run."""
