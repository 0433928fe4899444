"""The gateway: one session per request, behind a gRPC edge and an OpenAI-compatible one.

In reading order, each package imports those before it alone: `request` (what a client may ask for),
`answer` (how a model's text is read),
`question`, `keys`, `virtual` (which model), `fleet` (which workers), `regions` (near or far), `scope` (what
is known of a running request), `tracing` (how one that has ended is followed), `admission`,
`context` and `request_scope` (what sessions share, what the parts of one share), `prompt`, `session`, `asks`
(what generates nothing), `grpc`, `http`; `gateway` puts them together.
"""
