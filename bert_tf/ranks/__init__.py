"""Ranks of a distributed job: how they connect, communicate and agree."""
