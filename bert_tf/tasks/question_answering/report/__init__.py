"""The HTML report of a question-answering run."""
