"""`penstock flags`: change settings of the gateways at run time, see whom that reaches, take it back.

In reading order: `flag_options` is what is typed, `flag_gateways` asks the gateways of a fleet,
`blast_radius` says whom a change would reach, `flag_verdict` what it does to those who have it, `flag_words`
shows changes, `flags` is the command.
"""
