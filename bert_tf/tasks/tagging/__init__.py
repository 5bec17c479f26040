"""Token labels, such as named entities, on CoNLL's files."""
