"""Compute prefixes at a worker before they are asked for.

In reading order: `warm_part` computes a part of one, `warming` chooses which one and when, `prefix_warmer`
takes what gateways ask for and tells them.
"""
