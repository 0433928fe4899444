"""Keep what both sides of a draft session need to know of each other.

In reading order: `draft_tree` is a draft with branches, and finds which guesses come next; `prefix_digest`
names all tokens that are final.
"""
