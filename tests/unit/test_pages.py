"""Pages are short and linked to what exists; those that `make demo` answers from have the code's numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.decode.config import DecodeConfig
from services.gateway.config import GatewayConfig
from services.gateway.request.prompt_limits import PromptLimits
from services.launcher.up_arguments import DEFAULT_GRPC_PORT
from services.prefill.config import PrefillConfig
from services.retriever.config import RetrieverConfig
from services.speculator.config import SpeculatorConfig
from services.tokenizer.config import TokenizerConfig
from shared.bus.nats_server import MAX_PAYLOAD_BYTES
from shared.kv.limits import CHUNK_BYTES
from shared.text.stops import MAX_STOP_CHARS, MAX_STOPS
from tests.support.data import REPOSITORY

MAX_TEXT_BYTES = PromptLimits(MAX_PAYLOAD_BYTES).max_text_bytes
SENTENCES = [
    ("tokenizer", f"The size limit of a prompt is {MAX_TEXT_BYTES / 1e6:.0f} MB."),
    ("tokenizer", f"The queue of the tokenizer holds {TokenizerConfig().max_queued} texts."),
    ("gateway", f"The capacity of the gateway is {GatewayConfig().max_sessions} sessions."),
    (".", f"The default gRPC port of the gateway is {DEFAULT_GRPC_PORT}."),
    ("gateway", f"The default deadline of a request is {GatewayConfig().default_deadline_s:.0f} seconds."),
    ("gateway", f"The stall timeout of a stream is {GatewayConfig().stall_timeout_s:.0f} seconds."),
    ("prefill", f"computes a prompt in chunks of {PrefillConfig().max_batch_tokens} tokens."),
    ("prefill", f"The chunk size of the KV transfer is {CHUNK_BYTES >> 10} KB."),
    ("decode", f"The memory of the KV pool is {DecodeConfig().kv_memory_mb} MB."),
    ("decode", f"The batch of the decode worker holds {DecodeConfig().max_sequences} sequences."),
    ("detokenizer", f"A request may have {MAX_STOPS} stop strings."),
    ("detokenizer", f"A stop string has at most {MAX_STOP_CHARS} characters."),
    ("speculator", f"The draft length is {DecodeConfig().draft_tokens} tokens."),
    ("speculator", f"The speculator keeps {SpeculatorConfig().max_sessions} draft sessions."),
    ("retriever", f"is {RetrieverConfig().soft_share:.0%} of the time left."),
]


@pytest.mark.parametrize(("service", "sentence"), SENTENCES)
def test_a_page_says_what_is_so(service: str, sentence: str) -> None:
    page = (REPOSITORY / "shared" / "demo" / "documents" / service / "README.md").read_text()
    assert sentence.replace("%", " percent") in " ".join(page.split())


README_LINES = 150
PARAGRAPH_WORDS = 90
PAGES = [
    path
    for path in sorted(REPOSITORY.rglob("*.md"))
    if not any(part.startswith(".") or part == "node_modules" for part in path.relative_to(REPOSITORY).parts)
]
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_first_page_is_read_in_five_minutes() -> None:
    assert len((REPOSITORY / "README.md").read_text("utf-8").splitlines()) <= README_LINES


def test_no_paragraph_is_longer_than_a_reader_s_breath() -> None:
    for page in PAGES:
        text = FENCED.sub("", page.read_text("utf-8"))
        paragraphs = [
            part for part in re.split(r"\n\n|\n(?= *(?:[*|]|\d+\.) )", text) if not part.startswith("|")
        ]
        assert [part[:60] for part in paragraphs if len(part.split()) > PARAGRAPH_WORDS] == [], page


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        dead = []
        for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text("utf-8"))):
            path, _, anchor = target.partition("#")
            if re.match(r"\w+:", target):
                continue
            place = (page.parent / path) if path else page
            if not place.exists() or (anchor and anchor not in anchors_of(place)):
                dead.append(target)
        assert dead == [], page
