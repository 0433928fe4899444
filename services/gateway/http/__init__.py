"""OpenAI's interfaces and a few more over HTTP, on the same sessions as the gRPC edge.

In reading order: `server` listens by its `listener`, `router` lets in the `callers` that may ask
in a sound `framing`, and finds the `route`; `completion_calls` answers what generates,
`pages`, `text_pages`, `rerank_pages` and `vector_store_pages` (with `ask_pages`) the rest. Below: `fields`,
`completions`, `responses`; `openapi` describes all of it, `console` is the page for people.
"""
