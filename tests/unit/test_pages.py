"""The numbers on the pages beside the services, which `make demo` answers from, are those of the code."""

from __future__ import annotations

import pytest

from services.decode.config import DecodeConfig
from services.gateway.config import GatewayConfig
from services.gateway.request.prompt_limits import PromptLimits
from services.launcher.options import DEFAULT_GRPC_PORT
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
    page = (REPOSITORY / "services" / service / "README.md").read_text()
    assert sentence.replace("%", " percent") in " ".join(page.split())
