"""Names of a request's blocks: as its tokenizer gave them, continued, or made anew for other workers."""

from __future__ import annotations

import pytest

from services.gateway.prompt.request_hashes import RequestHashes
from shared.blocks.block_hash import BlockHasher
from tests.support.block_hashes import hashes_of

PROMPT = list(range(40))
LOG = list(range(40, 70))


@pytest.fixture
def names() -> RequestHashes:
    return RequestHashes(BlockHasher(), "layout", "tenant", hashes_of(PROMPT, "layout", "tenant"))


@pytest.mark.parametrize("layout", ["layout", "other"])
def test_every_layout_has_its_own_names_of_prompt_and_log(names: RequestHashes, layout: str) -> None:
    for ids in (PROMPT, PROMPT + LOG):
        assert names.hashes_of(ids, layout) == tuple(hashes_of(ids, layout, "tenant"))


def test_the_tokenizer_s_names_are_not_made_again() -> None:
    told = hashes_of(PROMPT, "as the tokenizer", "said")
    continued = RequestHashes(BlockHasher(), "layout", "", told).hashes_of(PROMPT + LOG, "layout")
    assert continued == tuple(hashes_of(PROMPT + LOG, "as the tokenizer", "said"))


def test_the_names_of_an_adapter_are_those_of_no_model() -> None:
    told = hashes_of(PROMPT, "layout", "tenant", "digest")
    names = RequestHashes(BlockHasher(), "layout", "tenant", told, adapter="digest")
    for layout in ("layout", "other"):
        of_adapter = names.hashes_of(PROMPT + LOG, layout)
        assert of_adapter == tuple(hashes_of(PROMPT + LOG, layout, "tenant", "digest"))
        assert not set(of_adapter) & set(hashes_of(PROMPT + LOG, layout, "tenant"))
