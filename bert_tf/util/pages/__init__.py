"""Self-contained HTML pages, with charts and tables."""
