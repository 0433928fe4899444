"""What people do with Cohere's own clients, of both versions of its interface; see told.py."""

from __future__ import annotations

import asyncio
from typing import Any

from cohere import AsyncClientV2, Client, ClientV2  # type: ignore[import-not-found]
from cohere.core import ApiError  # type: ignore[import-not-found]
from told import QUESTION, answer

TEXTS = ["Gates are opened by hand.", "A block holds 16 tokens.", "How many tokens does a block hold?"]


class Cohere:
    def __init__(self, url: str, _model: str, _embedder: str) -> None:
        self._known = {"base_url": url, "api_key": "none"}

    def rerank_v1(self) -> object:
        documents = [TEXTS[0], {"text": TEXTS[1], "title": "Blocks"}, {"text": TEXTS[2]}]
        client = Client(**self._known)
        return _found(
            client.rerank(query=QUESTION, documents=documents, return_documents=True, rank_fields=["text"])
        )

    def rerank_v2(self) -> object:
        client = ClientV2(**self._known)
        return _found(client.rerank(model="", query=QUESTION, documents=TEXTS, top_n=2))

    def rerank_asynchronously(self) -> object:
        async def ask() -> Any:
            async with AsyncClientV2(**self._known) as client:
                return await client.rerank(model="", query=QUESTION, documents=TEXTS)

        return _found(asyncio.run(ask()))

    def refuse(self) -> object:
        """Of nothing to rank: how the client shows what is wrong."""
        try:
            ClientV2(**self._known).rerank(model="", query=QUESTION, documents=[])
        except ApiError as error:
            return {"kind": type(error).__name__, "status": error.status_code, "body": error.body}
        return {}


def _found(answered: Any) -> dict[str, Any]:
    return {
        "indices": [result.index for result in answered.results],
        "scores": [result.relevance_score for result in answered.results],
        "texts": [getattr(getattr(result, "document", None), "text", None) for result in answered.results],
        "version": answered.meta.api_version.version,
        "tokens": answered.meta.tokens.input_tokens,
    }


if __name__ == "__main__":
    answer(Cohere)
