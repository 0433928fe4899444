"""Say which requests a change is for: by tenant, by model, by a share that a key keeps to. Pure.

Who is in a share is drawn from the setting, its value and the request's unit: its session where the client
names one, else the call. A share that grows takes more units and leaves nobody out that had it.
"""

from __future__ import annotations

from hashlib import blake2b

from shared.messages import FlagChange

DRAW_BYTES = 8


def is_for(change: FlagChange, tenant: str, model: str) -> bool:
    """Whether the change is for requests of that tenant to that model, be they in its share or not."""
    return (not change.tenant or change.tenant == tenant) and (
        not change.model or change.model in model_names(model)
    )


def model_names(model: str) -> tuple[str, ...]:
    """Return the names by which a change may mean a model that a client asks for: the whole, without its
    adapter, and both without the folders before them."""
    base = model.rpartition(":")[0] or model
    return model, base, model.rpartition("/")[2], base.rpartition("/")[2]


def is_in_share(change: FlagChange, unit: str) -> bool:
    """Whether a request of this unit gets it; `unit` is of its tenant alone."""
    if change.share >= 1:
        return True
    drawn = f"{change.setting}\0{change.value}\0{unit}".encode(errors="surrogatepass")
    number = int.from_bytes(blake2b(drawn, digest_size=DRAW_BYTES).digest(), "little")
    return number < change.share * 2.0 ** (8 * DRAW_BYTES)
