"""A Hugging Face directory becomes a description and weights, checked before anything is read."""
