"""Parse how the corpora of a retriever are said, in every place that says them: [NAME[@TENANT+TENANT]=]PATH.

/srv/handbook                    the corpus `default`, for everybody
handbook=/srv/handbook           another name
prices@acme+rival=/srv/prices    for these tenants alone
./a=b                            a path: it begins with a dot, a slash or ~
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import InvalidRequest

DEFAULT_CORPUS = "default"
"""The name of one that is given none."""
MAX_CORPORA = 32
"""The most corpora of a retriever: each is mapped, watched and reported."""
MAX_CORPUS_TENANTS = 64

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""The form of a tenant's name, as in the file of API keys."""
_PATH_STARTS = ("/", ".", "~")


@dataclass(frozen=True, slots=True)
class NamedCorpus:
    """`path` is absolute: a folder, a file or FOLDER/PATTERN. No `tenants`: it is for everybody."""

    name: str
    path: str
    tenants: tuple[str, ...] = ()

    def is_for(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants


def split_corpus(text: str) -> tuple[str, str]:
    """Return what stands before the path, with its =, and the path."""
    head, equals, path = text.partition("=")
    return ("", text) if not equals or text.startswith(_PATH_STARTS) else (head + equals, path)


def read_named_corpora(texts: Sequence[str]) -> tuple[NamedCorpus, ...]:
    """Raises InvalidRequest with the one that is wrong and what it may be."""
    if len(texts) > MAX_CORPORA:
        raise InvalidRequest(f"{len(texts)} corpora are named: a retriever takes at most {MAX_CORPORA}")
    corpora: dict[str, NamedCorpus] = {}
    for text in texts:
        corpus = _named_corpus(text)
        if corpus.name in corpora:
            raise InvalidRequest(
                f"two corpora have the name {corpus.name!r}, {corpora[corpus.name].path} and {corpus.path}: "
                "write NAME=PATH with names that differ"
            )
        corpora[corpus.name] = corpus
    return tuple(corpora.values())


def _named_corpus(text: str) -> NamedCorpus:
    head, path = split_corpus(text)
    name, at, listed = head.removesuffix("=").partition("@")
    tenants = tuple(listed.split("+")) if at else ()
    wrong = f"the corpus {text!r} is not [NAME[@TENANT+TENANT]=]PATH: "
    if not path:
        raise InvalidRequest(f"{wrong}it has no path")
    if head and not _NAME.fullmatch(name):
        raise InvalidRequest(f"{wrong}a name is 1 to 64 letters, digits, '.', '_' or '-', no mark first")
    if len(tenants) > MAX_CORPUS_TENANTS:
        raise InvalidRequest(f"{wrong}it has {len(tenants)} tenants, more than {MAX_CORPUS_TENANTS}")
    for tenant in tenants:
        if not _TENANT.fullmatch(tenant):
            raise InvalidRequest(f"{wrong}{tenant!r} is no tenant's name as in the file of API keys")
    return NamedCorpus(name or DEFAULT_CORPUS, str(Path(path).expanduser().resolve()), tenants)
