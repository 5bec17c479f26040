"""Trained networks put to use: a session with weights, and the forms that serving takes."""
