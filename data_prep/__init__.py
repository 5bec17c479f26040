"""From raw text to TFRecords; every stage is a module that runs with ``python -m``."""

import bert_tf  # noqa: F401 (first of all, since it explains what is not installed)
