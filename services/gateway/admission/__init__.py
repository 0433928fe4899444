"""Whether there is room for a request, and what is left out when there is little.

In reading order: `admission` predicts the first token, `admission_queue` is where requests wait for a slot,
`pressure` measures both, `degradation` decides what to do without.
"""
