"""Which rows go into the next step, and what it will cost."""
