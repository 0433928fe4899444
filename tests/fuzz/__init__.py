"""Hostile input for everything that comes from outside; `python -m tests.fuzz` goes through the targets."""
