"""Distillation: the teacher, its losses, its cached targets, and the student's initial weights."""
