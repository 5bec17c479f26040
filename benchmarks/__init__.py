"""Comparisons with peers and limits; each module is a script with a ``--json=PATH`` flag."""
