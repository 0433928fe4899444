"""Changes are taken, kept and taken back, whatever the file does. The bus has nobody else here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from services.gateway.config import GatewayConfig
from services.gateway.flags import flag_keeper
from services.gateway.flags.flag_guards import FlaggedTimes
from services.gateway.flags.flag_keeper import FlagKeeper
from shared.bus.fleet import FleetView
from shared.errors import InvalidRequest, Unavailable
from shared.flags.flag_file import read_flag_file
from shared.flags.flag_history import MAX_FLAG_DAYS
from shared.messages import ChangeFlag
from tests.support.clock import FakeClock
from tests.support.metric import value
from tests.support.records import make_record

NOBODY: Any = None
TRIAL = ChangeFlag("ada", "a trial", setting="rerank", value="false", guard="errors<1%", lasts_s=60)


@pytest.fixture(autouse=True)
def patient_with_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that others keep busy takes longer than a guard may wait."""
    monkeypatch.setattr(flag_keeper, "DISK_S", 60.0)


def keeper(file: Path, clock: FakeClock | None = None) -> FlagKeeper:
    return FlagKeeper.of(
        "gateway-0", GatewayConfig(flags=str(file)), NOBODY, FleetView(), clock or FakeClock()
    )


def no_requests() -> Iterable[FlaggedTimes]:
    return ()


def versions(flags: FlagKeeper) -> tuple[str, ...]:
    return flags.versions_for("acme", lambda: "m", "a")


async def test_a_change_is_in_force_and_in_the_file_and_the_next_life_has_it(tmp_path: Path) -> None:
    file = tmp_path / "flags.jsonl"
    flags = keeper(file)
    assert not flags.are_in_force
    made = await flags.change(TRIAL)
    assert versions(flags) == (made.version,) == ("1@gateway-0",)
    assert made.digest == flags.digest == keeper(file).digest
    assert versions(keeper(file)) == (made.version,)
    assert not flags.config_of(versions(flags)).rerank


async def test_a_change_ends_with_its_time(tmp_path: Path) -> None:
    clock = FakeClock()
    flags = keeper(tmp_path / "flags.jsonl", clock)
    await flags.change(TRIAL)
    clock.advance(TRIAL.lasts_s - 1)
    await flags.look(no_requests)
    assert versions(flags) == ("1@gateway-0",)
    clock.advance(1)
    await flags.look(no_requests)
    assert versions(flags) == ()
    with pytest.raises(InvalidRequest, match="1@gateway-0 is not in force"):
        await flags.change(ChangeFlag("ada", "late", rolls_back="1"))


async def test_what_cannot_be_written_is_not_in_force(tmp_path: Path) -> None:
    flags = keeper(tmp_path / "gone" / "flags.jsonl")
    with pytest.raises(Unavailable, match=r"flags\.jsonl cannot be written \(No such file"):
        await flags.change(TRIAL)
    assert not flags.are_in_force


async def test_a_guard_ends_a_change_also_where_that_cannot_be_written_yet(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    file = folder / "flags.jsonl"
    flags = keeper(file)
    made = await flags.change(TRIAL)
    for _ in range(2):
        flags.record_end(make_record(flags=(made.version,), outcome="failed", ttft_us=None))
    folder.rename(tmp_path / "away")
    await flags.look(no_requests)
    assert not flags.are_in_force
    assert value("penstock_flags_stale") == 1
    (tmp_path / "away").rename(folder)
    await flags.look(no_requests)
    assert value("penstock_flags_stale") == 0
    last = read_flag_file(file).history.changes[-1]
    assert (last.author, last.rolls_back) == ("guard", made.version)


async def test_a_file_that_cannot_be_used_keeps_no_gateway_from_serving(tmp_path: Path) -> None:
    file = tmp_path / "flags.jsonl"
    file.mkdir()
    assert not keeper(file).are_in_force
    assert value("penstock_flags_stale") == 1


async def test_so_many_changes_are_in_force_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flag_keeper, "MAX_FLAGS", 2)
    flags = keeper(tmp_path / "flags.jsonl")
    await flags.change(TRIAL)
    await flags.change(TRIAL)
    with pytest.raises(InvalidRequest, match="2 changes are in force: roll some back first"):
        await flags.change(TRIAL)
    await flags.change(ChangeFlag("ada", "room", rolls_back="1"))
    assert (await flags.change(TRIAL)).version == "4@gateway-0"


@pytest.mark.parametrize("lasts_s", [-1, MAX_FLAG_DAYS * 86_400 + 1])
async def test_a_change_lasts_no_longer_than_it_may(tmp_path: Path, lasts_s: int) -> None:
    flags = keeper(tmp_path / "flags.jsonl")
    with pytest.raises(InvalidRequest, match="send seconds up to 90 days"):
        await flags.change(ChangeFlag("ada", "why", setting="rerank", value="false", lasts_s=lasts_s))
