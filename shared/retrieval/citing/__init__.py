"""Say which passage supports each sentence of an answer.

sentences        a text as sentences, by their places in it
evidence         what a sentence and a part of a passage have in common
stitching        the share of a sentence that is there only where it is taken from two places
answer_citations the passage that supports each sentence, or none
"""
