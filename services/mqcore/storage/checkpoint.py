"""The `checkpoint` file: how far the derived files are durable (RocketMQ's StoreCheckpoint, 5.5).

Big-endian; 4096 bytes, because Java maps exactly one page and would extend a shorter file.

| offset | size | name                 | meaning                                                                      |
|--------|------|----------------------|------------------------------------------------------------------------------|
| 0      | 8    | physicMsgTimestamp   | store timestamp, ms, up to which the CommitLog is durable                    |
| 8      | 8    | logicsMsgTimestamp   | the same for the ConsumeQueues                                               |
| 16     | 8    | indexMsgTimestamp    | the same for full IndexFiles                                                 |
| 24     | 8    | masterFlushedOffset  | what a slave knows of its master                                             |
| 32     | 8    | confirmPhyOffset     | end of what every in-sync replica has                                        |
| 40     | 8    | logicsPhysicalOffset | first byte of the last record whose ConsumeQueue entry is durable; 0: unknown |
| 48     | 4048 |                      | zero                                                                         |
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from mqcore.storage.disk import Disk

__all__ = ["StoreCheckpoint"]

_FIELDS: Final = Struct(">qqqqqq")
_FILE_BYTES: Final = 4096
_PATH: Final = "checkpoint"
_MARGIN_MS: Final = 3000
"""How much earlier RocketMQ starts to recover than its checkpoint says."""


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """What is known to be durable. A value: a new one replaces the file as a whole, so that it cannot be torn."""

    physic_message_timestamp_ms: int = 0
    logics_message_timestamp_ms: int = 0
    index_message_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0
    """Every entry whose record starts at or below it is durable in its ConsumeQueue. Must be lowered before the log
    is written again below it: entries of new records there would be trusted without being durable."""

    @classmethod
    def load(cls, disk: Disk) -> StoreCheckpoint:
        """Reads it; all zeros if there is none, or if its first fields are missing."""
        data = disk.read_file(_PATH)
        return cls.decode(data) if data and len(data) >= _FIELDS.size else cls()

    @classmethod
    def decode(cls, data: bytes) -> StoreCheckpoint:
        """From the bytes of the file, of which the first 48 count."""
        return cls(*_FIELDS.unpack_from(data))

    def encode(self) -> bytes:
        """The 4096 bytes of the file."""
        fields = _FIELDS.pack(
            self.physic_message_timestamp_ms,
            self.logics_message_timestamp_ms,
            self.index_message_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_physical_offset,
            self.logics_physical_offset,
        )
        return fields.ljust(_FILE_BYTES, b"\x00")

    def save(self, disk: Disk) -> None:
        """Replaces the file, durably. Blocks."""
        disk.write_file(_PATH, self.encode())

    def vouching_for_nothing(self) -> StoreCheckpoint:
        """Without anchors: the next unclean start reads the whole log. The timestamps go too, or RocketMQ's rule would
        pick a late file by them and never see that the log was cut before it."""
        return StoreCheckpoint(
            master_flushed_offset=self.master_flushed_offset, confirm_physical_offset=self.confirm_physical_offset
        )

    @property
    def min_timestamp_ms(self) -> int:
        """RocketMQ's anchor for a recovery: every record stored before it is durable and dispatched."""
        return max(0, min(self.physic_message_timestamp_ms, self.logics_message_timestamp_ms) - _MARGIN_MS)
