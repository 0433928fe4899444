"""Whether there is room for a request, and what is left out when there is little.

In reading order: `drain_gate` says whether anything is taken in, `session_shares` divides the sessions among
tenants, `admission` predicts the first token, `taken_slots` knows who may have one beyond those there are,
`length_sketch` and `answer_lengths` know how long answers get and `running_answers` when places come free by
that, `request_meter` counts what a request uses of its tenant's share, `agent_sessions` knows what calls of
one agent have waited, `ticket` is a request that wants a slot, `fair_turns` puts tickets of tenants in order,
`admission_queue` is where they wait, `usual_budget` knows what clients allow, `degradation` decides what to
do without, `model_levels` does so for each model, `pressure` measures what they go by.
"""
