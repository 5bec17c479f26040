"""Trainings of several programs on the same text, evaluated by the same program."""
