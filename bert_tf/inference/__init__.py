"""Inference with trained networks: a session with weights, and exports for serving."""
