"""Conditions over the text by which an answer ends, beside the stop strings of `shared.text.stops`.

In reading order: `char_set` is what one place of a pattern may be, `regex_syntax` reads a pattern,
`regex_automaton` follows it in linear time, `regex_stops` cuts streamed text before a match, and
`stop_conditions` does so for whatever a request has of both.
"""
