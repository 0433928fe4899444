"""Citations in a terminal and as JSON: which passage, by which words, and what nothing supports."""

from __future__ import annotations

import io
import json

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.chat_session import ChatOutput
from services.cli.view.answer_output import JsonOutput, TextOutput
from services.cli.view.citation_view import MAX_QUOTED_CHARS, cited_line

PASSAGE = pb.RetrievedPassage(source="rivers.md", text="It rains. Water flows\ndownhill.", prompt_place=2)
PROMPT = pb.PromptInfo(passages=[PASSAGE])
ANSWER = "Waters flow. \u00c4pfel sind blau."
CITATIONS = [
    pb.Citation(start=0, end=12, prompt_place=2, passage_start=10, passage_end=31, support=0.75),
    pb.Citation(start=13, end=30, support=0.25),
]
END = pb.Terminal(outcome=pb.OUTCOME_FINISHED, finish_reason=pb.FINISH_REASON_STOP, citations=CITATIONS)


def shown(output: TextOutput) -> None:
    output.prompt(PROMPT)
    output.text(pb.TextDelta(text=ANSWER[:5]))
    output.text(pb.TextDelta(text=ANSWER[5:]))
    output.end(END)


def test_a_terminal_shows_each_sentence_with_what_supports_it() -> None:
    out, err = io.StringIO(), io.StringIO()
    shown(TextOutput(out, err))
    assert out.getvalue() == ANSWER + "\n"
    assert err.getvalue().splitlines()[1:] == [
        "penstock ask: [2] supports \u201cWaters flow.\u201d, by \u201cWater flows downhill.\u201d",
        "penstock ask: no passage supports \u201c\u00c4pfel sind blau.\u201d",
    ]


def test_a_chat_shows_them_too() -> None:
    out, err = io.StringIO(), io.StringIO()
    shown(ChatOutput(out, err, None, None))
    assert "penstock chat: no passage supports \u201c\u00c4pfel sind blau.\u201d" in err.getvalue()


def test_json_has_the_numbers() -> None:
    out = io.StringIO()
    JsonOutput(out, io.StringIO()).end(END)
    (event,) = map(json.loads, out.getvalue().splitlines())
    assert event["citations"][0] == {
        "start": 0,
        "end": 12,
        "prompt_place": 2,
        "passage_start": 10,
        "passage_end": 31,
        "support": 0.75,
    }
    assert [each["prompt_place"] for each in event["citations"]] == [2, 0]


def test_the_same_words_are_shown_once_and_long_ones_without_their_middle() -> None:
    whole = "b" * MAX_QUOTED_CHARS
    assert cited_line(pb.Citation(end=len(whole)), whole, {}).endswith(f"\u201c{whole}\u201d")
    text = f"{whole}b"
    passage = pb.RetrievedPassage(text=text, prompt_place=1)
    citation = pb.Citation(start=0, end=len(text), prompt_place=1, passage_start=0, passage_end=len(text))
    half = "b" * (MAX_QUOTED_CHARS // 2)
    assert cited_line(citation, text, {1: passage}) == f"[1] supports \u201c{half} … {half}\u201d"
