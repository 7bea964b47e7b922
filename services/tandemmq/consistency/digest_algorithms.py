"""The hash functions a digest may be made with. Imported where bytes are, which need not have both libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandemmq.core.audit.replica_store import Hash

__all__ = ["DIGEST_ALGORITHMS", "DIGEST_BYTES", "hash_maker"]

DIGEST_BYTES: Final = {"xxh3_128": 16, "blake3": 32}
DIGEST_ALGORITHMS: Final = tuple(DIGEST_BYTES)


def hash_maker(algorithm: str) -> Callable[[], Hash]:
    """Makes empty hashes of that name. KeyError for an unknown one."""
    if algorithm == "xxh3_128":
        import xxhash

        return xxhash.xxh3_128
    if algorithm == "blake3":
        import blake3

        return blake3.blake3
    raise KeyError(algorithm)
