"""Names of a request's blocks: as its tokenizer gave them, continued, or made anew for other workers."""

from __future__ import annotations

import pytest

from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.prompt.request_hashes import RequestHashes, usual_layout
from shared.blocks.block_hash import BlockHasher
from shared.bus.fleet import InstanceView
from tests.support.block_hashes import hashes_of
from tests.support.heartbeats import make_heartbeat

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


def view(instance: str, layout: str, model: str = "m") -> InstanceView:
    beat = make_heartbeat(
        "decode",
        instance,
        host="h",
        pid=1,
        model=model,
        layout=layout,
        capacity=8,
        kv_blocks=9,
        kv_blocks_free=9,
    )
    return InstanceView(beat, 0.0)


def test_a_prompt_is_named_for_the_layout_that_most_workers_of_its_model_have() -> None:
    views = [view("d0", "rare"), view("d1", "usual"), view("d2", "usual")]
    others = [view(f"e{number}", "elsewhere", "another model") for number in range(3)]
    assert usual_layout(views + others, ModelIdentity("m")) == "usual"
    assert (
        usual_layout(views[:2], ModelIdentity("m"))
        == usual_layout(views[1::-1], ModelIdentity("m"))
        == "rare"
    )
    assert usual_layout(others, ModelIdentity("m")) == ""
