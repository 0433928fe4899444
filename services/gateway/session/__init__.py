"""The life of one request, from the call to its one terminal event.

In reading order: `front_door` takes a call in and `call_sessions` are its choices; `session_registry` knows
all sessions, `session` is one; `placer` places it (`placement_messages`), `placement_watch` sees that it
goes on, `text_intake` takes text in and `response_relay` writes it out; `client_cancels` ends it from
outside.
"""
