"""Updates measured as ranks of a job, and the arithmetic of their communication."""
