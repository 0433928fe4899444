"""Let this process hold as many files and connections open as the machine lets it have."""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files (`ulimit -Sn`) to the hard one and return it.

    A soft limit is often 1,024, for programs that use select(); nothing here does.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """Return how many files and connections this process may hold open now."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
