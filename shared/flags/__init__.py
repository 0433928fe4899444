"""Changes of settings at run time, as gateways and the command line understand them alike.

In reading order: `flag_history` is all changes that somebody knows, `flag_match` says which requests one is
for, `guard` when it is to end by itself, `flag_file` keeps the history in a file.
"""
