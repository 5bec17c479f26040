"""Trained models of every task put to use: loaded in a program, and exported for servers."""
