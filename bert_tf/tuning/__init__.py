"""With what precision, operations and threads a job computes; decided by tables."""
