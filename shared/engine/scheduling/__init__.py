"""Schedule: choose who goes first, and which rows go into the next step."""
