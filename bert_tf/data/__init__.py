"""Record layouts, TFRecord files with random access, masking and the input pipeline."""
