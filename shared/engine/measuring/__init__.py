"""Measure how fast an engine is, and what its machine could do."""
