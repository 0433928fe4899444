"""`penstock scale` and a real launcher, whose services are tiny and say truly how they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from shared.files.roll_file import ROLL_NAME, StackRoll, write_roll
from tests.integration.test_cli_roll import BROKEN, command, pids, started
from tests.support.launched import Up


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with started(tmp_path_factory.mktemp("scale")) as running:
        yield running


async def scale(up: Up, *argv: str, environ: Mapping[str, str] | None = None) -> tuple[int, list[str], str]:
    return await command(up, "scale", *argv, environ=environ)


async def test_instances_come_and_go_while_the_others_stay(up: Up) -> None:
    """Those that come have users of their own at the bus, which nobody who is connected feels."""
    before = pids(up)
    code, out, err = await scale(up, "decode=4", "gateway=2")
    assert (code, err) == (0, ""), out
    assert out[-1].startswith("decode=4, gateway=2 after ")
    more = pids(up)
    assert more.keys() == before.keys() | {"decode-2", "decode-3", "gateway-1"}
    assert before.items() <= more.items()
    code, out, err = await scale(up, "decode=1")
    assert (code, err) == (0, "")
    assert {"decode-1 drains", "decode-2 drains", "decode-3 drains"} <= {*out}
    assert pids(up).keys() == {"gateway-0", "gateway-1", "decode-0"}
    code, _, _ = await scale(up, "decode=2", "gateway=1")
    assert code == 0
    assert pids(up).keys() == before.keys()
    assert pids(up)["decode-0"] == before["decode-0"]


@pytest.mark.thorough
async def test_what_cannot_be_started_is_named_and_all_others_go_on(up: Up) -> None:
    before, broken = pids(up), up.state_dir.parent / BROKEN
    broken.touch()
    code, out, _ = await scale(up, "decode=3")
    broken.unlink()
    assert code == 1
    assert out[-1].startswith("decode-2 refused its configuration")
    assert out[-1].endswith("all that serve go on as they are")
    code, _, _ = await scale(up, "decode=2")
    assert (code, pids(up)) == (0, before)


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("nobody=2", "there is no role"),
        ("decode=0", "from 1 to"),
        ("decode", "from 1 to"),
        ("decode=x", "N from"),
    ],
)
async def test_what_is_no_count_of_a_role_is_a_usage_error(up: Up, argument: str, why: str) -> None:
    code, _, err = await scale(up, argument)
    assert (code, why in err) == (2, True)


async def test_a_role_that_the_stack_is_without_is_named(up: Up) -> None:
    code, _, err = await scale(up, "prefill=2")
    assert (code, "started without prefill" in err) == (1, True)


async def test_another_fleet_s_bus_is_not_scaled(up: Up) -> None:
    code, _, err = await scale(up, "decode=3", environ={"PENSTOCK_NATS_URL": up.stack()["nats"]})
    assert (code, "whatever keeps the processes" in err) == (1, True)


async def test_a_stack_is_not_scaled_in_the_middle_of_a_roll(up: Up) -> None:
    write_roll(up.state_dir, StackRoll(0, "", "", "", (), stand_in="decode-2"))
    code, _, err = await scale(up, "decode=3")
    (up.state_dir / ROLL_NAME).unlink()
    assert (code, "finish the roll first" in err) == (1, True)
