"""Say whether a gateway takes in what it is asked, which ends as it drains."""

from __future__ import annotations

from shared.errors import Unavailable


class DrainGate:
    """`closing`: the gateway drains, and clients are told to ask another one.

    `hears_last_calls`: its ports were left to others that share them. Who still asks was connected before,
    and is told with the answer that the connection ends: it is served once more.
    """

    def __init__(self) -> None:
        self.closing = False
        self.hears_last_calls = False

    def check(self) -> None:
        """Raise Unavailable where another gateway is to be asked."""
        if self.closing and not self.hears_last_calls:
            raise Unavailable("this gateway is draining: use another one", hop="gateway")
