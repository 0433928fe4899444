"""Identify whose call it is, and limit how much of the gateway its key may use.

In reading order: `api_keys` reads the file of keys, `rate_limits` counts what each of them uses, `key_gate`
is asked by the edges.
"""
