"""Typed configuration: every value is checked, and whatever is wrong is said with its place.

fields        a configuration is a frozen dataclass, each field with its rule
named_corpus  a value of the form NAME=PATH
config_file   penstock.toml, with the line of each setting
settings      the sources of a setting, and which one counts
"""
