"""Questions that generate nothing: embeddings, search, rerank, tokens and their text.

In reading order: `call_trace` notes what becomes spans, `text_calls` asks instances in turn, `text_asks`
and `passage_asks` are the questions themselves, `token_bytes_cache` remembers what ids spell.
"""
