"""Following a request after its end: spans for a collector, and what `penstock why` tells of it.

In reading order: `spans` of a record, `otlp` as a collector reads them, `span_exporter` that sends them;
`ended_requests`, which keeps the latest records and says what is usual among them.
"""
