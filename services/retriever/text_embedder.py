"""Texts → vectors, for who asks for nothing else: what of it runs in the retriever's worker thread."""

from __future__ import annotations

from dataclasses import dataclass

from shared.bus import Delivery
from shared.deadline import Deadline
from shared.errors import InvalidRequest, TooLarge
from shared.messages import MAX_EMBED_TEXT_BYTES, MAX_EMBED_TEXTS, Embed, Embedded
from shared.retrieval.embedder import Embedder

FLOAT32_LE = "<f4"


@dataclass(frozen=True, slots=True, eq=False)
class EmbedJob:
    """Texts that wait for their vectors, until `end`."""

    delivery: Delivery
    embed: Embed
    end: Deadline

    @property
    def request_id(self) -> str:
        return self.delivery.envelope.request_id


class TextEmbedder:
    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed_texts(self, message: Embed) -> Embedded:
        texts = self._embedder.embed_counted(message.texts)
        return Embedded(
            vectors=tuple(vector.astype(FLOAT32_LE).tobytes() for vector in texts.vectors),
            tokens=tuple(texts.tokens),
            truncated=tuple(texts.truncated),
        )


def check_texts(message: Embed) -> None:
    """Raises InvalidRequest or TooLarge for what a gateway would not send."""
    if not 1 <= len(message.texts) <= MAX_EMBED_TEXTS:
        raise InvalidRequest(
            f"{len(message.texts)} texts were sent; a retriever takes 1 to {MAX_EMBED_TEXTS}"
        )
    for index, text in enumerate(message.texts):
        if not text.strip():
            raise InvalidRequest(f"text {index} is blank; send some words")
        if len(text.encode(errors="surrogatepass")) > MAX_EMBED_TEXT_BYTES:
            raise TooLarge(f"text {index} is over the limit of {MAX_EMBED_TEXT_BYTES} bytes; shorten it")
