"""Count the parts of JSON before it is read, which costs time and memory for each of them.

Megabytes of empty arrays would hold up every stream of the gateway for a third of a second.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """The most arrays and objects, texts, and values in arrays and objects; names are texts too."""

    objects: int
    texts: int
    values: int

    def broken_by(self, raw: bytes) -> str:
        """Return what `raw` has more of than it may ("20 texts"), "" for nothing.

        Brackets and commas that stand in texts do not count; texts are told apart only where there may be too
        many.
        """
        if raw.count(b'"') <= 2 * self.texts and not self._too_many(raw):
            return ""
        bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is escaped ends no text
        if bare.count(b'"') > 2 * self.texts:
            return f"{self.texts} texts"
        return self._too_many(b"".join(bare.split(b'"')[::2]))

    def _too_many(self, raw: bytes) -> str:
        if raw.count(b"[") + raw.count(b"{") > self.objects:
            return f"{self.objects} arrays and objects"
        if raw.count(b",") >= self.values:
            return f"{self.values} values"
        return ""
