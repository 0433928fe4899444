"""Where keys and values are kept, and for which sequence."""
