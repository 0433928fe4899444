"""What the model services have in common around an engine: its thread, prefix events, wire forms."""
