"""A request's share: whose it is, as far as workers know, and its weight."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from shared.blocks.block_hash import fleet_key_bytes
from shared.errors import InvalidRequest
from shared.files.api_key_file import MAX_WEIGHT

TENANT_DIGEST_BYTES = 8
MAX_TENANT_CHARS = 64
"""The longest name of a tenant that a share may carry: a worker keeps it."""

_TENANT = b"penstock tenant"
_ANSWERS = b"penstock answers"


@dataclass(frozen=True, slots=True)
class TenantShare:
    """`tenant` is a name within one process, or between processes its digest; "" is that of an open edge.

    What a request of weight n uses counts as an n-th of it for its tenant.
    """

    tenant: str = ""
    weight: int = 1

    def for_workers(self, fleet_key: str) -> TenantShare:
        """Return the share as it is said outside of the gateway."""
        return TenantShare(tenant_digest(self.tenant, fleet_key), self.weight)

    def check(self) -> None:
        """Raise InvalidRequest for a share that no gateway would send."""
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise InvalidRequest(
                f"the weight of a share is {self.weight}; send a whole number from 1 to {MAX_WEIGHT}"
            )
        if len(self.tenant) > MAX_TENANT_CHARS:
            raise InvalidRequest(
                f"the tenant of a share has {len(self.tenant)} characters; send at most {MAX_TENANT_CHARS}"
            )


OPEN_SHARE = TenantShare()


def tenant_digest(tenant: str, fleet_key: str) -> str:
    """Name a tenant for workers, which need to tell tenants apart and not to know them.

    Keyed as the names of KV blocks are, so that nobody without the fleet's key can try names. `fleet_key` is
    as the configuration has it.
    """
    if not tenant:
        return ""
    return _digest(tenant, fleet_key, _TENANT)


def answer_scope(cache_scope: str, fleet_key: str) -> str:
    """Name for workers those among whom a request's KV is shared: to others its answer is of no use either.

    It is a name for everybody at an open edge, too. Keyed as `tenant_digest` is.
    """
    return _digest(cache_scope, fleet_key, _ANSWERS)


def _digest(text: str, fleet_key: str, person: bytes) -> str:
    key = fleet_key_bytes(fleet_key)
    return blake2b(text.encode(), digest_size=TENANT_DIGEST_BYTES, key=key, person=person).hexdigest()
