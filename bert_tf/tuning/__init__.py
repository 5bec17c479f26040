"""Measures with what precision, operations and threads a job runs fastest on this machine."""
