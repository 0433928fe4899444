"""Sampling parameters, said once for every edge and the engine.

thinking    how long a model may think
parameters  each with its default, its meaning and its bounds
defaults    what holds for a request that does not say
"""
