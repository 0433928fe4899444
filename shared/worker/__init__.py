"""What the model services have in common around an engine: actor, jobs, thread, prefix events, wire forms."""
