"""What tells two checkpoints apart, in a fraction of the time of reading them."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from shared.engine.loading.weight_files import weight_files

DIGEST_BYTES = 16
SAMPLES_PER_FILE = 1024
SAMPLE_BYTES = 1024
WHOLE_FILE_BYTES = SAMPLES_PER_FILE * SAMPLE_BYTES
_MAX_HEADER_BYTES = 100 << 20  # the format's own limit


def checkpoint_digest(model_dir: str | Path) -> str:
    """32 hex digits, of the content of a model's directory and not of its name.

    They cover config.json, and of every weight file its size, its header (names, shapes, dtypes and places of
    all tensors) and SAMPLES_PER_FILE evenly spaced pieces of SAMPLE_BYTES; a file of up to WHOLE_FILE_BYTES
    is covered wholly. Trained weights differ nearly everywhere, so two trainings of one shape differ in it;
    somebody who changes single weights between the pieces on purpose is not found out.
    """
    folder = Path(model_dir)
    digest = blake2b((folder / "config.json").read_bytes(), digest_size=DIGEST_BYTES)
    for path in weight_files(folder):
        digest.update(_file_digest(path))
    return digest.hexdigest()


def _file_digest(path: Path) -> bytes:
    digest = blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb") as file:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        if size <= WHOLE_FILE_BYTES:
            digest.update(file.read())
            return digest.digest()
        header_bytes = int.from_bytes(file.read(8), "little")
        digest.update(file.read(min(header_bytes, _MAX_HEADER_BYTES)))
        last = size - SAMPLE_BYTES
        for sample in range(SAMPLES_PER_FILE):
            file.seek(last * sample // (SAMPLES_PER_FILE - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
