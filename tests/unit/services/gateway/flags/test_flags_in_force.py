"""Which changes a request gets, and what its settings are with them."""

from __future__ import annotations

from services.gateway.config import GatewayConfig
from services.gateway.flags import flags_in_force
from services.gateway.flags.flags_in_force import FlagsInForce
from shared.flags.flag_history import FlagHistory
from shared.messages import FlagChange
from tests.support.flag_changes import MADE_US, flag_change

NOW_US = MADE_US + 1000


def flags(*changes: FlagChange) -> FlagsInForce:
    made = FlagsInForce(GatewayConfig())
    made.put(FlagHistory().united(changes), NOW_US)
    return made


def never() -> str:
    raise AssertionError("nobody asks for the model")


def test_of_each_setting_a_request_gets_the_first_change_that_is_for_it() -> None:
    made = flags(
        flag_change(1, value="1"),
        flag_change(2, value="2", tenant="acme"),
        flag_change(3, value="3", tenant="acme", model="large"),
        flag_change(4, setting="rerank", value="false"),
    )
    versions = made.versions_for("acme", lambda: "small", "a")
    assert sorted(versions) == ["2@gateway-0", "4@gateway-0"]
    config = made.config_of(versions)
    assert (config.local_prefill_tokens, config.rerank) == (2, False)
    assert made.config_of(made.versions_for("acme", lambda: "large", "a")).local_prefill_tokens == 3
    assert made.config_of(made.versions_for("globex", lambda: "large", "a")).local_prefill_tokens == 1


def test_without_changes_nothing_is_asked_and_the_settings_are_the_gateway_s_own() -> None:
    config = GatewayConfig()
    made = FlagsInForce(config)
    assert made.versions_for("acme", never, "a") == ()
    assert made.config_of(()) is config


def test_the_model_is_asked_for_where_a_change_names_one_alone() -> None:
    assert flags(flag_change(1)).versions_for("acme", never, "a") == ("1@gateway-0",)


def test_a_request_keeps_its_settings_when_the_change_is_rolled_back() -> None:
    made = flags(flag_change(1, value="7"))
    versions = made.versions_for("", never, "a")
    made.put(
        FlagHistory().united([flag_change(1, value="7"), flag_change(2, rolls_back="1@gateway-0")]), NOW_US
    )
    assert made.versions_for("", never, "a") == ()
    assert made.config_of(versions).local_prefill_tokens == 7
    assert made.versions_of([1]) == versions


def test_a_change_ends_when_its_time_is_up() -> None:
    made = flags(flag_change(1, ends_unix_us=NOW_US + 5))
    assert made.active
    made.refresh(NOW_US + 5)
    assert not made.active


def test_a_change_of_another_version_of_the_code_is_left_out_and_told() -> None:
    made = flags(
        flag_change(1, setting="telepathy", value="on"), flag_change(2, value="many"), flag_change(3)
    )
    assert [change.version for change in made.active] == ["3@gateway-0"]
    assert made.unusable == ("1@gateway-0", "2@gateway-0")
    assert made.config_of(("1@gateway-0", "9@nobody")) == GatewayConfig()


def test_so_many_combinations_are_kept_ready_and_no_more() -> None:
    made = flags(*(flag_change(number, value=str(number)) for number in range(1, 4)))
    assert flags_in_force.MAX_KEPT_CONFIGS == 256
    wanted = ("1@gateway-0",)
    assert made.config_of(wanted) is made.config_of(wanted)
    for number in range(flags_in_force.MAX_KEPT_CONFIGS):
        made.config_of(("1@gateway-0", f"{number}@nobody"))
    assert made.config_of(wanted).local_prefill_tokens == 1
