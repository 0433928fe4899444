"""Identify whose call it is, and limit how much its key may use over all gateways.

In reading order: `api_keys` finds the key that a client shows, `rate_bucket` lets through so much a minute,
`rate_limits` counts what a key uses, `key_account` keeps the books of a key in a gateway and names the
gateway that counts it, `key_keeper` counts for all gateways, `key_desk` admits requests there, be it here or
elsewhere, with an `allowance` for each, `keys_in_force` follows the file of keys, and `key_gate` is asked by
the edges.
"""
