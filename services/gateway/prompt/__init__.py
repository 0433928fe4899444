"""Turn an admitted request into ids that can be routed: retrieval, cache, tokenization, warming.

In reading order: `preparation` walks through all of it; `admission_gate` is asked before each step, and
`model_chooser` which model that is for (`difficulty_asker`: by how hard the question is);
`preprocessor` asks retrievers and tokenizers (`role_asker`), `cached_response` looks for an earlier answer
(`response_key`), `warmer` has the worker of the `likely_route` begin early; `request_hashes` hashes the
blocks of what comes out. `stream_takeover` takes the place of all of it for the stream of another gateway.
`answer_citing` asks what supports the answer, once it is there; `next_turn_warmer` has the prompt behind it
begun early (`next_turn`: how that begins).
"""
