"""Trained models in the forms that serving takes."""
