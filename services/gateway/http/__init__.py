"""OpenAI's interfaces and a few more over HTTP, on the same sessions as the gRPC edge.

In reading order: `server` listens, `router` finds the page; `completion_calls` answers what generates,
`pages`, `text_pages`, `rerank_pages` and `vector_store_pages` (with `ask_pages`) the rest. Below: `fields`,
`completions`, `responses`.
"""
