"""A draft for the user's own target: answers of the target, a small Llama that learns them, what it is
worth."""
