"""The detokenizer: token ids in, text out, stop strings cut."""
