"""Events whose text alone changes: the same bytes as events that are made anew."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.gateway.http.completions.chat import ChatShape
from services.gateway.http.completions.event_stream import TextFrame
from services.gateway.http.completions.text_completion import TextShape

TEXTS = ("", " once", 'a "quote" and \\', "\r\n\t\0", "\u2028 grüß 🙂", "\ud83d", "\0text\0", '", "x": 1')


@pytest.mark.parametrize("shape", [TextShape(), ChatShape()])
@pytest.mark.parametrize("model", ["demo-target", 'org/"name" ü'])
def test_a_frame_around_a_text_is_the_event_with_that_text(shape: TextShape | ChatShape, model: str) -> None:
    def event_of(text: str) -> dict[str, Any]:
        return {"id": "x", "model": model, "choices": [shape.text_chunk(3, text, None, 0)], "usage": None}

    frame = TextFrame(event_of)

    for text in TEXTS:
        assert frame.around(text) == f"data: {json.dumps(event_of(text))}\n\n".encode()
