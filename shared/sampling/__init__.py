"""Sampling parameters, said once for every edge and the engine.

parameters  each with its default, its meaning and its bounds
defaults    what holds for a request that does not say
"""
