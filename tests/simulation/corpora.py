"""Documents of a simulated fleet, indexed once: its retrievers find them unchanged and read nothing anew."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from shared.retrieval.index.build import build_index
from tests.simulation.simulated_embedder import SimulatedEmbedder
from tests.support.read_here import read_documents_here

SHARED = "handbook"
"""The corpus that every tenant may search."""
LATER_NS = 3600 * 10**9
"""The time since the files were written, as indexing sees it."""


def index_corpora(folder: Path, private: str = "") -> dict[str, Any]:
    """Write and index documents: those of SHARED, and one of the tenant `private`. Return the settings of
    retrievers that search them."""
    texts = {
        SHARED: {
            "penstock.md": "# Penstocks\n\nA penstock is a gated pipe that carries water to a turbine.\n",
            "turbine.md": "# Turbines\n\nA turbine turns water into motion, a dynamo into light.\n",
            "gate.md": "# Gates\n\nThe gate of a dam is lowered by hand when the river is high.\n",
        }
    }
    if private:
        texts[private] = {"plan.md": f"# Plans\n\nThe secret plan of {private} is to move the river.\n"}
    named = []
    for name, documents in texts.items():
        corpus = folder / name
        corpus.mkdir(parents=True)
        for document, text in documents.items():
            (corpus / document).write_text(text)
        _index(corpus, folder / "state")
        named.append(f"{name}{'' if name == SHARED else '@' + private}={corpus}")
    return {"corpus": tuple(named), "state_dir": str(folder / "state")}


def _index(corpus: Path, state_dir: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        read_documents_here(patch)
        build_index(
            str(corpus),
            state_dir,
            SimulatedEmbedder().as_embedder(),
            lambda _done, _total: None,
            waiting=lambda _holder: None,
            clock_ns=lambda: time.time_ns() + LATER_NS,
        )
