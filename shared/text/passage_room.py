"""Choose which of some passages, best first, there is room for. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def fitting_places(sizes: Sequence[int], room: int) -> tuple[int, ...]:
    """Places of those that are put in, of `sizes` in any one unit: the best as long as they fit.

    One that is larger than what is left is passed over: a smaller one after it may still fit.
    """
    fitting: list[int] = []
    for place, size in enumerate(sizes):
        if size <= room:
            fitting.append(place)
            room -= size
    return tuple(fitting)


def utf8_bytes(text: str) -> int:
    """Count the bytes of a text as it travels; a lone surrogate is measured, and refused elsewhere."""
    return len(text.encode(errors="surrogatepass"))
