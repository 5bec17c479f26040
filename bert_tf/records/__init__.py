"""Record layouts, the TFRecord files that hold records, and the analysis of their contents."""
