"""Services of one process: what they say to each other goes through no socket."""
