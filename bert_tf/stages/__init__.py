"""Stages that fill a directory once: manifest, journal, installation, and shared work."""
