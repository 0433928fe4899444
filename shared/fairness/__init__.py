"""Share what there is among tenants, by what each of them has used: a Virtual Token Counter.

    share             whose a request is, and how large a part it is to have
    token_cost        how much service a token is
    recent_service    what each tenant has had lately
    service_counters  what each tenant has had, and whose turn it is
    shortest_turns    whose turn it is in a tenant's own line: the first's or the shortest's

After Sheng et al., Fairness in Serving Large Language Models, OSDI 2024. Pure: no clock, no I/O.
"""
