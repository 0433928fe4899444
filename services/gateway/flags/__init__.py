"""Settings that an operator changes at run time, for some requests, while gateways serve.

In reading order: `flag_settings` is the table of what can be changed, `flags_in_force` says which changes a
request gets and what its settings are with them, `flag_guards` watches the requests that have one,
`flag_traffic` tells of requests that have ended, `flag_keeper` takes changes, keeps them in a file and hears
of those that other gateways took.
"""
