"""GGUF files: one file with weights, shape, tokenizer and template."""
