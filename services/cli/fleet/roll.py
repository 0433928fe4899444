"""`penstock roll`: every instance of a stack is started anew, in turn, and no request is refused."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.cli.exit_codes import EXIT_EXPIRED, EXIT_FAILED
from services.cli.fleet.code_digest import code_digest
from services.cli.fleet.fleet_watch import (
    NATS_URL_OPTION,
    BusAddress,
    Fleet,
    add_bus_location,
    listening,
    run_on_bus,
)
from services.cli.fleet.restart import add_restart_limits
from services.cli.fleet.stack_roll import ROLL_ORDER, FleetRoll
from services.cli.launcher_process import ROOT
from services.cli.stack_file import stack_pids, stack_shares_ports
from shared.bus import Bus
from shared.deadline import SYSTEM_CLOCK
from shared.errors import Unavailable
from shared.files.roll_file import StackRoll, read_roll

ALONE = (
    "the gateways do not share their ports (share_ports): who connects to one is refused while it is started "
    "anew; pass --yes to roll them all the same"
)


def build_roll_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock roll",
        description="Start every instance of a stack here anew while it serves, by the code of this command: "
        "role by role, the gateways last. First an instance more of the role becomes ready, then each of "
        "the others finishes its work, ends and is waited for until it is ready again. Where one does not "
        "come, all stays as it is then, and the same command goes on from there. The launcher and its "
        "nats-server go on as they are. Exit code 1 when it cannot be begun, 3 when an instance was not "
        "ready in time.",
    )
    parser.add_argument(
        "roles", metavar="ROLE", nargs="*", help=f"of {', '.join(ROLL_ORDER)} (default: all, in this order)"
    )
    add_restart_limits(parser)
    parser.add_argument("--yes", action="store_true", help="also where gateways do not share their ports")
    add_bus_location(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    parser = build_roll_parser()
    args = parser.parse_args(argv)
    if unknown := [role for role in args.roles if role not in ROLL_ORDER]:
        parser.error(f"there is no role {', '.join(unknown)}; there are {', '.join(ROLL_ORDER)}")
    return run_on_bus(args, "roll", lambda address: _roll(address, args))


async def _roll(address: BusAddress, args: argparse.Namespace) -> int:
    state_dir = address.state_dir
    if state_dir is None:
        raise Unavailable(
            "it rolls a stack of `penstock up` here, and the bus that is named may be any fleet's; pass "
            "--state-dir, and elsewhere let whatever keeps the processes replace them one by one"
        )
    roles = tuple(role for role in ROLL_ORDER if not args.roles or role in args.roles)
    in_place = () if stack_shares_ports(state_dir, NATS_URL_OPTION) else ("gateway",)
    if in_place and "gateway" in roles and not args.yes:
        print(f"penstock roll: {ALONE}", file=sys.stderr)
        return EXIT_FAILED
    async with listening(address) as (bus, fleet):
        await fleet.collect(address.expected)
        _check_versions(bus, fleet)
        roll = _begun(state_dir, roles)
        rolling = FleetRoll(bus, fleet, state_dir, roll, args.timeout, args.kill_after, in_place)
        done = await rolling.run()
    return 0 if done else EXIT_EXPIRED


def _check_versions(bus: Bus, fleet: Fleet) -> None:
    """Raises Unavailable where the fleet and this code could not work beside each other."""
    if bus.unknown.sentences and not fleet.all():
        raise Unavailable(
            f"{bus.unknown.sentences[0]}; end the stack with `penstock down` and start it with `penstock up`"
        )


def _begun(state_dir: Path, roles: tuple[str, ...]) -> StackRoll:
    """Return a roll of all that runs now, or what is left of the one that was not finished."""
    digest, pids = code_digest(ROOT), stack_pids(state_dir, NATS_URL_OPTION)
    number = SYSTEM_CLOCK.unix_us()
    before = read_roll(state_dir)
    stand_in = "" if before is None else before.stand_in
    lives: Mapping[str, int] = {
        name: pid for name, pid in pids.items() if name != stand_in and name.rpartition("-")[0] in roles
    }
    if before is not None and (before.is_done, before.digest, before.roles) == (False, digest, roles):
        lives = {name: pid for name, pid in lives.items() if before.lives.get(name) == pid}
        print(f"going on with {len(lives)} instances of the roll that was not finished", flush=True)
    return StackRoll(number, sys.executable, str(ROOT), digest, roles, lives)
