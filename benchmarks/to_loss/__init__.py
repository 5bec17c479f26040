"""Trainings of several programs on the same text, judged by one evaluator."""
