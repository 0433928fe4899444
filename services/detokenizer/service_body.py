"""Serve as a detokenizer, in a process of its own or in a gateway's."""

from __future__ import annotations

import asyncio

from services.detokenizer.actor import DetokenizerActor, GatewayLost
from services.detokenizer.config import DetokenizerConfig
from shared.bus.subjects import inbox
from shared.process.serve_actor import serve_actor
from shared.process.service import Service
from shared.text.model_source import resolve_model
from shared.text.tokenizer import TextTokenizer


async def body(service: Service[DetokenizerConfig]) -> None:
    """Load the tokenizer and decode until the service has drained."""
    config = service.config
    source = await asyncio.to_thread(resolve_model, config.model, config.served_name)
    tokenizer = await asyncio.to_thread(TextTokenizer.load, source.path)
    service.announce_model(source.name, tokenizer_digest=source.tokenizer_digest())
    actor = service.supervisor.start(lambda: DetokenizerActor(service, tokenizer))

    def on_lost(role: str, instance: str, why: str) -> None:
        # A suspect one may come back, and its leases decide; one in this process lives as long as we do.
        if role == "gateway" and why != "suspect" and not service.bus.is_near(inbox(role, instance)):
            actor.tell_control(GatewayLost(instance))

    service.fleet.on_lost(on_lost)
    await serve_actor(service, actor)
