"""Bits of a record's sysFlag (RocketMQ's MessageSysFlag and CompressionType)."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BORN_HOST_V6",
    "COMPRESSED",
    "COMPRESSION_LZ4",
    "COMPRESSION_TYPE_MASK",
    "COMPRESSION_ZLIB",
    "COMPRESSION_ZSTD",
    "INNER_BATCH",
    "MULTI_TAGS",
    "NEED_UNWRAP",
    "STORE_HOST_V6",
    "TRANSACTION_COMMIT",
    "TRANSACTION_MASK",
    "TRANSACTION_NONE",
    "TRANSACTION_PREPARED",
    "TRANSACTION_ROLLBACK",
    "enters_consume_queue",
    "enters_index",
]

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
"""The body holds several messages; such a record enters the batch ConsumeQueue only, which we do not build."""
COMPRESSION_TYPE_MASK: Final = 0x700
"""Says how a body was compressed if COMPRESSED is set; 0 is zlib, as old clients wrote it."""
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300


def enters_consume_queue(sys_flag: int) -> bool:
    """Whether consumers may see the record: it is no inner batch and no prepared or rolled-back transaction.

    Half messages do enter the ConsumeQueue of their internal topic: RocketMQ stores them with the type reset to NONE.
    """
    return not sys_flag & INNER_BATCH and sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)


def enters_index(sys_flag: int) -> bool:
    """Whether the record can be found by key: everything but a rollback."""
    return sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
