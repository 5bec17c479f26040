"""Record layouts, the TFRecord files that hold them, and what is in those."""
