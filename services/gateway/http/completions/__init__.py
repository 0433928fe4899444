"""Completions and chats as OpenAI has them, at once and as a stream.

In reading order: `chat` and `text_completion` read a request, `completion` is what both share; `choice` and
`answer` write, with `token_text`; `call`, which reads a body in its
`body_room`, `event_stream` and `error_object` are the ways in and out for every page.
"""
