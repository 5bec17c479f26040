"""Shared by the speed comparisons: subjects, turns and results."""
