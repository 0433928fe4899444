"""Keep keys and values, and know for which sequence."""
