"""Pool memory that another process of this host can map: the shm transport.

The memory is an anonymous memfd, so nothing is left behind whatever kills the process. A reader opens
it through /proc/<pid>/fd/<fd>, which the kernel allows to the same user only. Its first page holds a
nonce that also travels over NATS: finding it proves that both ends look at the same memory, and not at
another pid namespace's process of that number. Seals keep the size as it is, because reading a mapping
beyond a shortened file would kill the reader.
"""

from __future__ import annotations

import fcntl
import hmac
import mmap
import os
import secrets
import struct
import sys

from shared.errors import ProtocolError, Unavailable
from shared.kv.memory.pool_memory import Layout, PoolMemory
from shared.messages import KvSegment

HEADER_PAGE_BYTES = 4096
NONCE_BYTES = 32
MAX_SEGMENT_BYTES = 1 << 44
NAME = "penstock-kv"

_HEAD = struct.Struct(f"<16s{NONCE_BYTES}sQ")
_MAGIC = b"penstock-kv-pool"

NOT_SHARED = KvSegment(pid=0, fd=0, nbytes=0, nonce=b"")
"""The answer of a pool that cannot be mapped."""


class SharedPool:
    """The sender's side. `memory` is the pool's storage: writable, zeroed, `nbytes` long."""

    def __init__(self, fd: int, mapping: mmap.mmap, segment: KvSegment) -> None:
        self._fd = fd
        self.segment = segment
        self.memory = memoryview(mapping)[HEADER_PAGE_BYTES:]

    @classmethod
    def create(cls, nbytes: int) -> SharedPool:
        """Raises Unavailable where the system has no sealed memfd (not Linux) or no memory."""
        if sys.platform != "linux":
            raise Unavailable("shared KV pools need Linux; use the nats transport")
        size = HEADER_PAGE_BYTES + nbytes
        try:
            fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(fd, size)
                mapping = mmap.mmap(fd, size)
                fcntl.fcntl(
                    fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
                )
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise Unavailable(f"cannot make a shared KV pool of {nbytes} bytes: {error.strerror}") from error
        nonce = secrets.token_bytes(NONCE_BYTES)
        _HEAD.pack_into(mapping, 0, _MAGIC, nonce, nbytes)
        return cls(fd, mapping, KvSegment(os.getpid(), fd, nbytes, nonce))

    def close(self) -> None:
        """Nobody can map it any more; the memory itself lives until its last view is gone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PoolMapping:
    """The receiver's side: another process's pool, read-only."""

    def __init__(self, mapping: mmap.mmap, view: memoryview, memory: PoolMemory) -> None:
        self._mapping = mapping
        self._view = view
        self.memory = memory

    @classmethod
    def open(cls, segment: KvSegment, layout: Layout) -> PoolMapping:
        """Raises Unavailable, with the reason, when that memory cannot be reached or proven from here."""
        if sys.platform != "linux":
            raise Unavailable("shared KV pools need Linux")
        if segment.pid == 0:
            raise Unavailable("the sender's pool is not shared")
        block_bytes = layout.groups.block_layers * layout.layer_block_bytes
        sound = segment.pid > 0 and segment.fd >= 0 and 0 < segment.nbytes <= MAX_SEGMENT_BYTES
        if not sound or segment.nbytes % block_bytes or len(segment.nonce) != NONCE_BYTES:
            raise ProtocolError("this is not the description of a KV pool of our layout")
        mapping = _map(segment)
        magic, nonce, nbytes = _HEAD.unpack_from(mapping)
        same = magic == _MAGIC and nbytes == segment.nbytes and hmac.compare_digest(nonce, segment.nonce)
        if not same:
            mapping.close()
            raise Unavailable("the memory found there is not the sender's pool (another host or container?)")
        view = memoryview(mapping)[HEADER_PAGE_BYTES:]
        blocks = segment.nbytes // block_bytes
        return cls(mapping, view, PoolMemory(view, layout.groups, blocks, layout.layer_block_bytes))

    def close(self) -> None:
        """Unmap, once no view made from it is left; views live only as long as a copy."""
        self.memory.release()
        self._view.release()
        self._mapping.close()


def _map(segment: KvSegment) -> mmap.mmap:
    path = f"/proc/{segment.pid}/fd/{segment.fd}"
    size = HEADER_PAGE_BYTES + segment.nbytes
    try:
        # Looked at before it is opened: opening somebody's pipe or device could block or act.
        if not os.readlink(path).startswith(f"/memfd:{NAME}"):
            raise Unavailable("the sender's descriptor is no KV pool here (another host or container?)")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if os.fstat(fd).st_size != size or not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise Unavailable("the sender's pool has another size than announced, or could change it")
            return mmap.mmap(fd, size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
    except OSError as error:
        raise Unavailable(f"the sender's pool cannot be opened from here: {error.strerror}") from error
