"""Actors, their supervision, and what every actor on the bus has in common."""

from shared.actor.actor import Actor, Ask
from shared.actor.bus_actor import BusActor, Host, receiver
from shared.actor.supervisor import ActorRef, Supervisor
from shared.actor.tombstones import Tombstones

__all__ = ["Actor", "ActorRef", "Ask", "BusActor", "Host", "Supervisor", "Tombstones", "receiver"]
