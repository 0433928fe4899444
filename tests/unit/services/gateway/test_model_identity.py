"""A name may stand for several models; a request is for one of them."""

from __future__ import annotations

import pytest

from services.gateway.model_identity import ModelIdentity, find_model
from services.gateway.placement import serving
from shared.bus.fleet import InstanceView
from shared.errors import NotFound
from shared.messages import Heartbeat

OURS = ModelIdentity("m", "weights-a", "tokenizer-a")
OTHER_WEIGHTS = ModelIdentity("m", "weights-b", "tokenizer-a")
OTHER_TOKENIZER = ModelIdentity("m", "weights-c", "tokenizer-c")


def view(role: str, model: ModelIdentity, number: int = 0) -> InstanceView:
    """An instance of `model` as it announces itself."""
    text = role in ("tokenizer", "detokenizer")
    beat = Heartbeat(
        role, f"{role}-{number}", 1, "ready", 0, "h", 1, "", model.name, "",
        8, 0, 0, 0, 9, 9, 0.0, 0, b"", b"",
        weights_digest="" if text else model.weights, tokenizer_digest=model.tokenizer,
    )  # fmt: skip
    return InstanceView(beat, 0.0)


class Views:
    def __init__(self, *views: InstanceView) -> None:
        self._views = views

    def __call__(self, role: str) -> list[InstanceView]:
        return [view for view in self._views if view.heartbeat.role == role]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_workers_of_the_name_with_other_weights_do_not_serve_it(role: str) -> None:
    ours, other = view(role, OURS), view(role, OTHER_WEIGHTS, 1)
    assert serving([ours, other], role, OURS) == [ours]


@pytest.mark.parametrize("role", ["tokenizer", "detokenizer"])
def test_text_services_serve_all_weights_of_their_tokenizer_and_no_other(role: str) -> None:
    ours, other = view(role, OURS), view(role, OTHER_TOKENIZER, 1)
    assert serving([ours, other], role, OURS) == serving([ours, other], role, OTHER_WEIGHTS) == [ours]


@pytest.mark.parametrize("role", ["speculator", "retriever"])
def test_a_speculator_or_retriever_serves_all(role: str) -> None:
    other = view(role, ModelIdentity("draft", "weights-d", "tokenizer-d"))
    assert serving([other], role, OURS) == [other]


def test_of_two_models_of_a_name_that_which_more_decode_workers_have_is_meant() -> None:
    views = [view("decode", OTHER_WEIGHTS, 1), view("decode", OURS, 2), view("decode", OURS, 3)]
    assert find_model("m", Views(*views)) == OURS
    assert find_model("", Views(*reversed(views))) == OURS


def test_a_model_that_lacks_a_role_is_not_meant_while_another_has_all() -> None:
    whole = [view(role, OURS) for role in ("tokenizer", "prefill", "decode", "detokenizer")]
    part = [view("decode", OTHER_WEIGHTS, number) for number in (1, 2)]
    assert find_model("m", Views(*part, *whole)) == OURS


def test_a_name_that_nobody_serves_is_not_found() -> None:
    with pytest.raises(NotFound, match="'x' is not served"):
        find_model("x", Views(view("decode", OURS)))
