"""Read the text of an answer, however it comes: what the model thinks, says, and calls.

In reading order: `thinking_parser` tells thinking from answer, `answer_format` is how one text is to be read.
"""
