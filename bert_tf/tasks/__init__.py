"""One model_fn and its glue per job."""
