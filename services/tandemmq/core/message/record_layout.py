"""The bytes of a CommitLog record. The only place that knows them; RocketMQ's MessageExtEncoder and MessageDecoder.

Big-endian, signed unless noted. Offsets hold for two IPv4 hosts; each IPv6 host moves what follows it by 12.

| offset | size   | name                      | meaning                                                              |
|--------|--------|---------------------------|----------------------------------------------------------------------|
| 0      | 4      | totalSize                 | whole record, this field included                                    |
| 4      | 4      | magicCode                 | V1, V2 or BLANK below                                                |
| 8      | 4      | bodyCRC                   | CRC-32 (zlib) of the stored body & 0x7FFFFFFF                        |
| 12     | 4      | queueId                   |                                                                      |
| 16     | 4      | flag                      | the application's, opaque                                            |
| 20     | 8      | queueOffset               | entry number in the ConsumeQueue                                     |
| 28     | 8      | physicalOffset            | CommitLog position of this record's first byte                       |
| 36     | 4      | sysFlag                   | bits: see below; 0x10 and 0x20 say that a host is IPv6               |
| 40     | 8      | bornTimestamp             | the client's wall clock, ms                                          |
| 48     | 4 / 16 | bornHost address          |                                                                      |
| 52     | 4      | bornHost port             |                                                                      |
| 56     | 8      | storeTimestamp            | the broker's wall clock, ms; never decreases along the log           |
| 64     | 4 / 16 | storeHost address         |                                                                      |
| 68     | 4      | storeHost port            |                                                                      |
| 72     | 4      | reconsumeTimes            |                                                                      |
| 76     | 8      | preparedTransactionOffset | physicalOffset of the half message a commit belongs to, else 0       |
| 84     | 4      | bodyLength                |                                                                      |
| 88     | B      | body                      |                                                                      |
|        | 1 / 2  | topicLength               | i8 in V1, i16 in V2                                                  |
|        | T      | topic                     | UTF-8                                                                |
|        | 2      | propertiesLength          |                                                                      |
|        | P      | properties                | see properties.py                                                    |

A file of the log ends with a blank: i32 size of the rest of the file, then BLANK; the other bytes have no meaning.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

# Bits of a record's sysFlag (RocketMQ's MessageSysFlag and CompressionType).

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


V1_MAGIC: Final = 0xDAA320A7
V2_MAGIC: Final = 0xDAA320AB
"""Written only for topics longer than V1 can hold: brokers before 5.1 cannot read it."""
BLANK_MAGIC: Final = 0xCBD43194

MAX_V1_TOPIC_BYTES: Final = 127
CRC_MASK: Final = 0x7FFF_FFFF
HOST_FLAGS: Final = BORN_HOST_V6 | STORE_HOST_V6


def _whole_head(born: int, store: int) -> Struct:
    return Struct(f">iIIiiqqiq{born}siq{store}siiqi")


def _scan_head(born: int, store: int) -> Struct:
    return Struct(f">iIIi4xqqi8x{born}x4xq{store}x4x4x8xi")


def _delivery_head(born: int, store: int) -> Struct:
    return Struct(f">iIIi4xqqiq{born}s4xq{store}si12xi")


_ADDRESS_SIZES: Final = ((4, 4), (16, 4), (4, 16), (16, 16))

WHOLE_HEADS: Final = tuple(_whole_head(born, store) for born, store in _ADDRESS_SIZES)
"""Everything up to and including bodyLength, chosen by (sysFlag & HOST_FLAGS) >> 4."""

SCAN_HEADS: Final = tuple(_scan_head(born, store) for born, store in _ADDRESS_SIZES)
"""The same bytes without what dispatch does not need: totalSize, magicCode, bodyCRC, queueId, queueOffset,
physicalOffset, sysFlag, storeTimestamp, bodyLength."""

DELIVERY_HEADS: Final = tuple(_delivery_head(born, store) for born, store in _ADDRESS_SIZES)
"""The same bytes without what a receiver is not shown: totalSize, magicCode, bodyCRC, queueId, queueOffset,
physicalOffset, sysFlag, bornTimestamp, bornHost address, storeTimestamp, storeHost address and port, bodyLength."""

PART_LENGTH: Final = Struct(">h")
"""Length of the properties, and of a V2 topic."""

BLANK: Final = Struct(">iI")
"""Size and magic: how a blank starts, and every record."""

SMALLEST_RECORD_BYTES: Final = WHOLE_HEADS[0].size + 1 + PART_LENGTH.size


def encode_blank(size: int) -> bytes:
    """The first 8 bytes of a blank that fills the `size` bytes left in a file."""
    return BLANK.pack(size, BLANK_MAGIC)


# What can be wrong with a message's bytes or its values.


class MalformedRecord(Exception):
    """The bytes at `position` of a buffer are no valid record. The store, which knows the disk, says what follows."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"no valid record at position {position}: {reason}")
        self.position = position
        self.reason = reason


# CRC-32 of bodies, by isal where it is installed: a fifth of zlib's time for a body of 1 KiB, the same value.

try:
    from isal.isal_zlib import crc32 as crc32
except ImportError:  # Images without it (the consistency job's executors), and interpreters it has no wheel for.
    from zlib import crc32 as crc32
