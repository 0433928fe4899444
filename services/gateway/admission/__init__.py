"""Whether there is room for a request, and what is left out when there is little.

In reading order: `session_shares` divides the sessions among tenants, `admission` predicts the first token,
`admission_queue` is where requests wait for a slot, `usual_budget` knows what clients allow, `pressure`
measures both, `degradation` decides what to do without.
"""
