"""The life of one request, from the call to its one terminal event.

In reading order: `ingress` takes a call in and `call_sessions` are its choices; `session_registry` knows
all sessions, `session` is one, which an `interruption` ends early; `request_walk` leads it through its
stages, model after model; `router` places it (`route_messages`)
by its `expected_answer`, `route_watch` sees that it goes on, `route_holders` tells those who are needed
no more, `successor` finds another decode worker where its own one leaves, `text_intake` takes text in
and `response_relay` writes it out; `client_cancels` ends it from outside, `console_report` tells of all;
`agent_turn` is its part in the session of an agent. Requests with one `coalescing_key` have one
`computation`, which `running_computations` knows: `shared_work` is its owner's part in it, `following`
that of the others.
"""
