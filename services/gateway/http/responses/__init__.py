"""OpenAI's Responses over the same sessions.

In reading order: `responses` reads a request, with `response_input`;
`response_object`, `response_items` and `citations` are what is written, `response_answer` writes it.
"""
