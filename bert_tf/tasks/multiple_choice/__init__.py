"""Multiple choice: which answer to a question, or which ending of a text, is right."""
