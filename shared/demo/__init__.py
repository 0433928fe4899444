"""The models that ship: the built-in pair (`models/`), and the adapter over the default model with how it is
taught."""
