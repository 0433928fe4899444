"""A request of which nothing can be told has a sentence that says why."""

from __future__ import annotations

import pytest

from services.cli.exit_codes import EXIT_USAGE
from services.cli.fleet.why import MAX_NAME_CHARS, build_why_parser, unknown_words
from shared.messages import NoAccount


def test_an_id_that_nobody_knows_never_came_or_is_too_old() -> None:
    words = unknown_words("gateway-0.abc", {"gateway-0": NoAccount("", 7), "gateway-1": NoAccount("", 0)})
    assert words == (
        "no gateway knows a request gateway-0.abc: it never came, or it is too old; what is known are the "
        "last 7 of gateway-0, the last 0 of gateway-1"
    )


def test_a_request_that_runs_says_where_it_is() -> None:
    words = unknown_words("theirs", {"gateway-0": NoAccount("", 7), "gateway-1": NoAccount("prefill", 0)})
    assert words == "theirs is still running at gateway-1, in its phase prefill: ask again when it has ended"


def test_a_gateway_that_is_gone_or_silent_is_named() -> None:
    assert "gateway-3, which had the request gateway-3.abc, is not heard" in unknown_words(
        "gateway-3.abc", {"gateway-0": NoAccount("", 7)}
    )
    assert "gateway-0 does not answer: no answer" in unknown_words("gateway-0.a", {"gateway-0": "no answer"})
    assert "no gateway is heard" in unknown_words("gateway-0.abc", {})


@pytest.mark.parametrize("shown", ["chatcmpl-gateway-0.abc", "cmpl-gateway-0.abc", "resp_gateway-0.abc"])
def test_the_id_of_an_answer_is_that_of_its_request(shown: str) -> None:
    assert build_why_parser().parse_args([shown]).id == "gateway-0.abc"


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_CHARS + 1), "chatcmpl-"])
def test_what_is_no_id_is_a_usage_error(name: str) -> None:
    with pytest.raises(SystemExit) as ended:
        build_why_parser().parse_args([name])
    assert ended.value.code == EXIT_USAGE
    assert build_why_parser().parse_args(["x" * MAX_NAME_CHARS]).id
