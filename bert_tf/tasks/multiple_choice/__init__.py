"""Multiple choice: which of several continuations of a context, or answers to a question, is best."""
