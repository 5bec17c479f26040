"""The parts of a SQuAD report: its content, its tables and charts, and the page's own files."""
