"""The few administrative requests of RocketMQ's remoting protocol that a benchmark needs, over one blocking socket.

A frame, big-endian (RemotingCommand of RocketMQ 5):

    offset  size  name           meaning
    0       4     total_length   bytes that follow
    4       1     serialization  0: the header is JSON
    5       3     header_length  bytes of the header
    8       ...   header, body
"""

from __future__ import annotations

import base64
import hmac
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final, Self

from processes import MeasurementFailed

UPDATE_AND_CREATE_TOPIC: Final = 17
GET_BROKER_RUNTIME_INFO: Final = 28
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Final = 200
GET_BROKER_HA_STATUS: Final = 907
SUCCESS: Final = 0
READ_AND_WRITE: Final = 6
ANSWER_LIMIT_S: Final = 10.0

_LENGTHS: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of RocketMQ's, as brokers with ACL 2.0 ask for one."""

    access_key: str
    secret_key: str

    def signed(self, fields: dict[str, str], body: bytes) -> dict[str, str]:
        """The fields of a request with who signs it: HMAC-SHA1 of all values, in the order of their names, and the
        body."""
        fields = fields | {"AccessKey": self.access_key}
        content = "".join(fields[name] for name in sorted(fields)).encode() + body
        digest = hmac.digest(self.secret_key.encode(), content, "sha1")
        return fields | {"Signature": base64.b64encode(digest).decode()}


@dataclass(frozen=True, slots=True)
class BrokerOffsets:
    """How far a broker is: end of its CommitLog, and bytes of it whose ConsumeQueue entries are not built yet."""

    end_offset: int
    dispatch_behind_bytes: int


class RemotingAdmin:
    """One connection to one broker. OSError when it is not there; MeasurementFailed when it refuses."""

    def __init__(self, port: int, credentials: Credentials | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_LIMIT_S)
        self._credentials = credentials
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return bytes(data)

    def _ask(self, code: int, *, body: bytes = b"", **fields: str) -> Any:
        """Sends one request; returns the answer's body, parsed, or None without one."""
        self._opaque += 1
        if self._credentials is not None:
            fields = self._credentials.signed(fields, body)
        header = {"code": code, "language": "OTHER", "version": 0, "opaque": self._opaque, "flag": 0}
        data = json.dumps({**header, "extFields": fields, "serializeTypeCurrentRPC": "JSON"}).encode()
        self._socket.sendall(_LENGTHS.pack(4 + len(data) + len(body), len(data)) + data + body)
        (total,) = _LENGTH.unpack(self._receive(4))
        frame = self._receive(total)
        header_length = _LENGTH.unpack_from(frame)[0] & 0xFFFFFF
        answer, answer_body = json.loads(frame[4 : 4 + header_length]), frame[4 + header_length :]
        if answer["code"] != SUCCESS:
            raise MeasurementFailed(f"RocketMQ answered request {code} with {answer['code']}: {answer.get('remark')}")
        return json.loads(answer_body) if answer_body else None

    def create_topic(self, topic: str, queues: int, *, message_type: str = "NORMAL") -> None:
        """Creates a topic, or changes its number of queues."""
        self._ask(
            UPDATE_AND_CREATE_TOPIC,
            topic=topic,
            defaultTopic="TBW102",
            readQueueNums=str(queues),
            writeQueueNums=str(queues),
            perm=str(READ_AND_WRITE),
            topicFilterType="SINGLE_TAG",
            topicSysFlag="0",
            order="false",
            attributes=f"+message.type={message_type}",
        )

    def create_group(self, group: str, *, ordered: bool = False) -> None:
        """Creates a consumer group with the default of every other setting."""
        fields = {"groupName": group, "consumeMessageOrderly": ordered}
        self._ask(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(fields).encode())

    def offsets(self) -> BrokerOffsets:
        """End of the CommitLog and what is not dispatched of it."""
        table = self._ask(GET_BROKER_RUNTIME_INFO)["table"]
        return BrokerOffsets(int(table["commitLogMaxOffset"]), int(table["dispatchBehindBytes"]))

    def slaves_in_sync(self) -> int:
        """Slaves a master counts as in sync."""
        return int(self._ask(GET_BROKER_HA_STATUS)["inSyncSlaveNums"])
