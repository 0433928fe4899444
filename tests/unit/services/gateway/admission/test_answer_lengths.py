"""Answers of a tenant, a form and a model tell how long another one gets, as far as they are known."""

from __future__ import annotations

from dataclasses import replace

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.admission.answer_lengths import (
    LEAST_SEEN,
    MAX_ESTIMATES,
    MAX_KINDS,
    RENEWED_AFTER,
    SURE_SHARE,
    AnswerKind,
    AnswerLengths,
)
from services.gateway.admission.length_sketch import MAX_MEANS
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.request.request import validate_request
from services.gateway.request.tool_use import ToolUse
from shared.messages import PromptThinking, Tool

KIND = AnswerKind("m", "acme", "text", "00128")
MODEL = ModelIdentity("m")
MOST = 4096


def seen(lengths: AnswerLengths, kind: AnswerKind, tokens: int, times: int, *, cut: bool = False) -> None:
    for _ in range(times):
        lengths.record(kind, tokens, cut=cut)


def most(lengths: AnswerLengths, kind: AnswerKind) -> int:
    estimate = lengths.estimate(kind)
    assert estimate is not None
    return estimate.at_most(SURE_SHARE, MOST)


def test_nothing_is_predicted_of_a_model_that_has_hardly_answered() -> None:
    lengths = AnswerLengths()
    assert lengths.estimate(KIND) is None
    seen(lengths, KIND, 16, int(LEAST_SEEN) - 1)
    assert lengths.estimate(KIND) is None
    assert lengths.estimate(replace(KIND, model="another")) is None
    seen(lengths, KIND, 16, int(LEAST_SEEN))
    assert most(lengths, KIND) == 16


def test_a_tenant_with_few_answers_is_taken_for_one_like_the_others() -> None:
    lengths = AnswerLengths()
    seen(lengths, KIND, 16, 400)
    newcomer = replace(KIND, tenant="newcomer")
    assert most(lengths, newcomer) == 16
    seen(lengths, newcomer, 1024, 400)
    assert most(lengths, newcomer) == 1024
    assert most(lengths, KIND) == 16


def test_calls_of_tools_do_not_say_how_long_other_answers_get() -> None:
    lengths = AnswerLengths()
    seen(lengths, replace(KIND, form="tools"), 16, 200)
    seen(lengths, KIND, 512, 200)
    assert most(lengths, replace(KIND, form="tools")) == 16
    assert most(lengths, KIND) == 512


def test_a_tenant_that_sends_much_does_not_make_what_is_expected_of_another() -> None:
    lengths = AnswerLengths()
    seen(lengths, replace(KIND, tenant="heavy"), 2048, 2000)
    for tenant in range(60):
        seen(lengths, replace(KIND, tenant=f"light-{tenant}"), 16, 4)
    estimate = lengths.estimate(replace(KIND, tenant="newcomer"))
    assert estimate is not None
    assert estimate.longer_than(16) < 0.5


def test_an_answer_that_never_began_says_nothing() -> None:
    lengths = AnswerLengths()
    seen(lengths, KIND, 0, 100, cut=True)
    assert lengths.estimate(KIND) is None


def test_kinds_beyond_the_bound_push_out_the_one_that_was_not_met_for_longest() -> None:
    lengths = AnswerLengths()
    seen(lengths, replace(KIND, model="old"), 16, 2 * int(LEAST_SEEN))
    for tenant in range(MAX_KINDS):
        seen(lengths, replace(KIND, tenant=f"t{tenant}"), 16, 1)
    assert lengths.estimate(replace(KIND, model="old")) is None
    assert lengths.estimate(KIND) is not None


def test_a_kind_is_what_a_request_may_be_answered_with() -> None:
    message = pb.GenerateRequest(model="m", text="how?")
    plain = validate_request(message, drawn_seed=1, tenant="acme")
    message.sampling.json_schema = "{}"
    held = validate_request(message, drawn_seed=1, tenant="acme")
    armed = replace(plain, tool_use=ToolUse((Tool("look", "", ""),)))
    kinds = [AnswerKind.of(each, MODEL, 100) for each in (plain, held, armed)]
    assert [kind.form for kind in kinds] == ["text", "schema", "tools"]
    assert kinds[0] == KIND
    thinking = AnswerKind.of(armed, MODEL, 3000, PromptThinking(format="think"))
    assert (thinking.form, thinking.prompt) == ("tools+thinking", "08192")


def test_an_estimate_stands_until_a_sixteenth_more_answers_were_seen() -> None:
    lengths = AnswerLengths()
    seen(lengths, KIND, 16, 160)
    first = lengths.estimate(KIND)
    seen(lengths, KIND, 1024, int(160 * RENEWED_AFTER))
    assert lengths.estimate(KIND) is first
    seen(lengths, KIND, 1024, 1)
    assert lengths.estimate(KIND) is not first


def test_kinds_with_estimates_beyond_the_bound_are_made_anew() -> None:
    lengths = AnswerLengths()
    seen(lengths, KIND, 16, 160)
    first = lengths.estimate(KIND)
    for tenant in range(MAX_ESTIMATES):
        lengths.estimate(replace(KIND, tenant=f"t{tenant}"))
    assert lengths.estimate(KIND) is not first


def test_an_estimate_forgets_its_means_beyond_the_bound_and_stays_right() -> None:
    lengths = AnswerLengths()
    seen(lengths, KIND, 16, 160)
    estimate = lengths.estimate(KIND)
    assert estimate is not None
    first = estimate.mean(1)
    for most_tokens in range(2, MAX_MEANS + 2):
        estimate.mean(most_tokens)
    assert len(estimate._means) == 1
    assert estimate.mean(1) == first
