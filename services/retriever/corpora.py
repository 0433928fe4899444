"""The corpora of a retriever by name, and which of them a tenant may search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from services.retriever.served_corpus import ServedCorpus
from shared.errors import InvalidRequest, NotFound
from shared.messages import CorpusReport


class Corpora:
    """The corpora of a retriever: their number does not change, what is searched of each does."""

    def __init__(self, served: Iterable[ServedCorpus]) -> None:
        self._by_name = {corpus.named.name: corpus for corpus in served}

    def __iter__(self) -> Iterator[ServedCorpus]:
        return iter(self._by_name.values())

    def find(self, name: str, tenant: str) -> ServedCorpus | None:
        """The one of this name, or where that is "" the only one that the tenant may search; None where there
        is none.

        Raises NotFound for a name that is nobody's or another tenant's, in the same words, and InvalidRequest
        where several are to choose from.
        """
        allowed = {of: corpus for of, corpus in self._by_name.items() if corpus.named.is_for(tenant)}
        listed = ", ".join(allowed)
        if name:
            if name not in allowed:
                others = f"search one of {listed}" if allowed else "there is none that you may search"
                raise NotFound(f"there is no corpus {name!r}: {others}")
            return allowed[name]
        if len(allowed) > 1:
            raise InvalidRequest(f"there are several corpora: name one of {listed} as the `corpus`")
        return next(iter(allowed.values()), None)

    def state_of(self, name: str, tenant: str) -> str:
        """Return the state of the corpus that `find` finds; "" where it finds none."""
        try:
            corpus = self.find(name, tenant)
        except InvalidRequest:
            return ""
        return "" if corpus is None else corpus.state

    def states(self) -> frozenset[str]:
        """Return the states of all corpora that are searched now."""
        return frozenset(corpus.state for corpus in self._by_name.values())

    def reports(self) -> tuple[CorpusReport, ...]:
        return tuple(corpus.report for corpus in self._by_name.values())
