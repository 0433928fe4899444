"""Following a request after its end: spans for a collector, and what `penstock why` tells of it.

In reading order: `text_call_record` for calls that are no requests, `spans` of a request's record and
`call_spans` of these, `otlp` as a collector reads them, `collector_access`, which is how it is reached, and
`span_exporter` that sends them; `usage_ledger`, which sums what tenants use; `tail_requests`, the failed and
the slowest ones of the last minutes, and `ended_requests`, which keeps them and the latest records and says
what is usual among these.
"""
