"""Where keys and values are kept, and by whom."""
