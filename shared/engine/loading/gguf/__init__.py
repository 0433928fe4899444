"""A GGUF file becomes what a Hugging Face directory does: a shape, weights, a tokenizer."""
