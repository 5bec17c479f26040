"""Ratios against peers and limits; each module is a script with ``--json=PATH``."""
