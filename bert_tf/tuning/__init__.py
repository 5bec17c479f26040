"""What this machine computes fastest with, found by measuring."""
