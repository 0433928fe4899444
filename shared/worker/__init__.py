"""Share what the model services have around an engine: actor, jobs, thread, prefix events, wire forms."""
