"""Tell two checkpoints apart, in a fraction of the time of reading them."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from shared.engine.loading.gguf.find_file import find_gguf
from shared.engine.loading.gguf.header import read_file_header
from shared.engine.loading.weight_files import weight_files

DIGEST_BYTES = 16
SAMPLES_PER_FILE = 1024
SAMPLE_BYTES = 1024
WHOLE_FILE_BYTES = SAMPLES_PER_FILE * SAMPLE_BYTES
_MAX_HEADER_BYTES = 100 << 20  # the format's own limit


def checkpoint_digest(model_dir: str | Path) -> str:
    """32 hex digits, of the content of a model and not of its name.

    They cover config.json where there is one, and of every weight file its size, its header (names, shapes,
    dtypes and places of all tensors) and SAMPLES_PER_FILE evenly spaced pieces of SAMPLE_BYTES; a file of up
    to WHOLE_FILE_BYTES is covered wholly. Trained weights differ nearly everywhere, so two trainings of one
    shape differ in it; somebody who changes single weights between the pieces on purpose is not found out.
    """
    folder = Path(model_dir)
    gguf = find_gguf(folder)
    config = (folder / "config.json").read_bytes() if gguf is None else b""
    digest = blake2b(config, digest_size=DIGEST_BYTES)
    for path in weight_files(folder):
        digest.update(_file_digest(path, is_gguf=gguf is not None))
    return digest.hexdigest()


def _file_digest(path: Path, *, is_gguf: bool) -> bytes:
    digest = blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb") as file:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        if size <= WHOLE_FILE_BYTES:
            digest.update(file.read())
            return digest.digest()
        if is_gguf:
            digest.update(read_file_header(path).data)
        else:
            header_bytes = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(header_bytes, _MAX_HEADER_BYTES)))
        last = size - SAMPLE_BYTES
        for sample in range(SAMPLES_PER_FILE):
            file.seek(last * sample // (SAMPLES_PER_FILE - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
