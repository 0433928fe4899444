"""Know the instances, and choose which of them one request is given to.

In reading order: `model_identity` says what counts as one model and `served_models` which there are, with
`default_sampling`; `sent_load` adds to heartbeats what was sent since, and `sent_prefixes` remembers its
prompts; `tenant_jobs` is what decode workers have of a tenant beside others; `routing` chooses workers,
`known_prefixes` says how much of the prompt each has or could fetch from another, `prompt_path` who computes
it, and `best_route` all of that, as things stand now; `relief` says where a running stream is notably better
off; `request_client` asks them, `waiting` waits for one and `away_models` bounds who does, `liveness_check`
asks whether they still hold the request and `canceller` has them let go.
`breaker`, `breakers`, `avoided_instances` and `route_trials` keep away from those that fail, `crash_record`
and `poison_requests` from a request that fells them.
"""
