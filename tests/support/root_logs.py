"""Let pytest take logs from the root alone, once imported.

It attaches two handlers to loggers that do not propagate, too, for which it looks through all that there are,
in each of the three parts of a test: libraries have hundreds. A quarter of what a small test takes was that.
"""

from __future__ import annotations

import logging

from _pytest.logging import catching_logs


def attach_to_root(caught: catching_logs[logging.Handler]) -> logging.Handler:
    root = logging.getLogger()
    root.addHandler(caught.handler)
    caught.attached_loggers.append(root)
    if caught.level is not None:
        caught.handler.setLevel(caught.level)
        caught.orig_level = root.level
        root.setLevel(min(root.level, caught.level))
    return caught.handler


catching_logs.__enter__ = attach_to_root  # type: ignore[method-assign, assignment]
