"""From raw text to TFRecords; every stage is a module that runs with ``python -m``."""
