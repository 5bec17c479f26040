"""Stages that fill a directory once: manifests, journals, installation and parallel work."""
