"""Pass the engine's layer callbacks from its thread to the KV sender on the event loop."""

from __future__ import annotations

from functools import partial

from services.prefill.job import PrefillJob
from services.prefill.step_events import StepEvents
from shared.engine import BLOCK_TOKENS, AdmitResult, LayerCallback
from shared.kv.sending.sender import KvSender


def ready_blocks(start_token: int, end_token: int, num_tokens: int) -> tuple[int, int]:
    """Blocks that are final once KV of tokens [start, end) of `num_tokens` is: whole ones, and the last one.

    A block that an earlier chunk began belongs to the chunk that fills it.
    """
    end = -(-end_token // BLOCK_TOKENS) if end_token == num_tokens else end_token // BLOCK_TOKENS
    return start_token // BLOCK_TOKENS, end


class KvAnnouncer:
    """Announces cells as they become final."""

    def __init__(self, sender: KvSender, num_layers: int, events: StepEvents) -> None:
        self._sender = sender
        self._num_layers = num_layers
        self._step_events = events

    def layer_callback(self, job: PrefillJob) -> LayerCallback:
        """Return a callback for the engine's thread: the cells it reports reach the loop in order."""
        transfer_key, num_tokens = job.transfer_key, job.num_tokens

        def on_layer(layer: int, start_token: int, end_token: int) -> None:
            first, end = ready_blocks(start_token, end_token, num_tokens)
            if first < end:
                self._step_events.post(partial(self._sender.layer_ready, transfer_key, layer, first, end))

        return on_layer

    def offer(self, job: PrefillJob, admitted: AdmitResult) -> None:
        """The job has its blocks; those that were cached are final in every layer already."""
        self._sender.offer_transfer(
            job.request_id,
            job.epoch,
            job.gateway,
            job.peer,
            admitted.tables,
            admitted.first_blocks,
            job.deadline,
        )
        cached_blocks = job.cached_tokens // BLOCK_TOKENS
        if cached_blocks:
            for layer in range(self._num_layers):
                self._sender.layer_ready(job.transfer_key, layer, 0, cached_blocks)
