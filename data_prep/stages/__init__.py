"""The stages from text to records, one module each, and the pipeline of them."""
