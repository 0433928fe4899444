"""The digest of what two sides of a draft session hold."""

from __future__ import annotations

from shared.worker.drafts.prefix_digest import PrefixDigest


def test_it_does_not_depend_on_how_the_tokens_came() -> None:
    grown = PrefixDigest([1, 2])
    grown.extend(())
    grown.extend((3,))
    assert grown.value == PrefixDigest([1, 2, 3]).value


def test_it_depends_on_each_token_and_their_order() -> None:
    values = {PrefixDigest(ids).value for ids in ([1, 2, 3], [1, 2, 4], [2, 1, 3], [1, 2], [1, 2, 3, 0])}
    assert len(values) == 5
