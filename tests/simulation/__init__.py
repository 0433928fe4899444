"""A whole fleet in one loop: what it runs over, and what holds that to the real thing."""
