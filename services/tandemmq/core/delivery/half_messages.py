"""Half messages of transactions: which are undecided, how the others ended, and when each is to be asked after.

All of it follows from the log alone, from two topics that RocketMQ has for it:

- `RMQ_SYS_TRANS_HALF_TOPIC`, queue 0: the half messages. Nobody is given them. A half is named by its place there.
- `RMQ_SYS_TRANS_OP_HALF_TOPIC`, queue 0: records *about* halves, whose body names their places: "7,9,". With the tag
  `d` they have ended; with the tag `c` (RocketMQ passes over it) their producers were asked once more.

A commit is one append of two records: the message, with `preparedTransactionOffset` = its half's place in the log, and
behind it the record `d`. A log that is cut anywhere has neither, both, or the message as its very last record; in the
last case the next master writes the missing `d` before anything else, and so no half is ever committed twice. A record
`d` tells more than RocketMQ's: how the half ended (`TRAN_RESOLUTION`), and, as every record does, the lowest place that
is undecided with it (`TRAN_UNDECIDED_FROM`): a start reads what is younger and nothing else.

No clock: times are ms as the caller gives them, monotonic unless their name says otherwise.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from tandemmq.core.delivery.timer_queue import OP_TAG, op_body, op_offsets
from tandemmq.core.message.properties import (
    PROPERTY_CHECK_IMMUNITY_S,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_RESOLUTION,
    PROPERTY_TRANSACTION_UNDECIDED_FROM,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    encode_properties,
    tags_code,
)
from tandemmq.core.message.record import HALF_TOPIC, OP_TOPIC, Host, MessageRecord, OutgoingMessage, copy_of_record
from tandemmq.core.message.record_layout import TRANSACTION_COMMIT

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""RocketMQ keeps under this name how far it has got in the half topic."""

_CHECKED_TAG: Final = "c"
# What a client repeats comes within minutes; some 200 bytes each.
_REMEMBERED_MAX: Final = 65_536
# Places of ended halves that may stand in the heaps, beside as many as there are undecided.
_SLACK: Final = 1_024


class Resolution(Enum):
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    GIVEN_UP = "GIVEN_UP"
    """Asked after too often. What it held lies in GIVEN_UP_TOPIC."""


class BadTransactionId(ValueError):
    """The text is no transaction id of ours; the sender's fault."""


class TransactionId:
    """Where a half lies, in the words a client carries about: base64url of `v1 broker place offset message-id`.

    Any member of any broker group reads from it where the half is, and nothing else has to be remembered.
    """

    __slots__ = ("broker_name", "message_id", "physical_offset", "queue_offset")

    def __init__(self, broker_name: str, queue_offset: int, physical_offset: int, message_id: str) -> None:
        self.broker_name: Final = broker_name
        self.queue_offset: Final = queue_offset
        self.physical_offset: Final = physical_offset
        self.message_id: Final = message_id

    def encode(self) -> str:
        text = f"v1 {self.broker_name} {self.queue_offset} {self.physical_offset} {self.message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @staticmethod
    def parse(text: str) -> TransactionId:
        """Of a text that a client sent. Raises BadTransactionId."""
        try:
            parts = base64.b64decode(text.encode(), altchars=b"-_", validate=True).decode().split(" ", 4)
            version, broker_name, queue_offset, physical_offset, message_id = parts
            parsed = TransactionId(broker_name, int(queue_offset), int(physical_offset), message_id)
        except (ValueError, binascii.Error) as error:
            raise BadTransactionId(f"transaction id {text[:200]!r} was not made by a broker of this cluster") from error
        if version != "v1" or parsed.queue_offset < 0 or parsed.physical_offset < 0:
            raise BadTransactionId(f"transaction id {text[:200]!r} was not made by this version")
        return parsed


class Half:
    """One half message that is undecided."""

    __slots__ = (
        "check_count",
        "due_ms",
        "immunity_ms",
        "message_id",
        "physical_offset",
        "queue_id",
        "queue_offset",
        "stored_wall_ms",
        "topic",
    )

    def __init__(
        self,
        queue_offset: int,
        physical_offset: int,
        topic: str,
        queue_id: int,
        message_id: str,
        stored_wall_ms: int,
        immunity_ms: int,
        check_count: int = 0,
    ) -> None:
        self.queue_offset: Final = queue_offset
        self.physical_offset: Final = physical_offset
        self.topic: Final = topic
        """Where it goes, and its queue there."""
        self.queue_id: Final = queue_id
        self.message_id: Final = message_id
        self.stored_wall_ms: Final = stored_wall_ms
        self.immunity_ms: Final = immunity_ms
        """So long its producer asked to be left alone; 0: as the settings say."""
        self.check_count = check_count
        self.due_ms = 0
        """When it is looked at next."""


class _Ended:
    """What is remembered of a half that has ended. `is_held`: its end outlives what the settings guard against."""

    __slots__ = ("is_held", "resolution")

    def __init__(self, resolution: Resolution) -> None:
        self.resolution: Final = resolution
        self.is_held = False


class HalfMessages:
    """The table. What is told to it lies in the log already; it writes nothing."""

    def __init__(self, *, remembered_max: int = _REMEMBERED_MAX) -> None:
        self._undecided: dict[int, Half] = {}
        self._ended: OrderedDict[int, _Ended] = OrderedDict()
        self._remembered_max = remembered_max
        # Places, the lowest first, and (due, place); both with places that have ended meanwhile.
        self._order: list[int] = []
        self._due: list[tuple[int, int]] = []
        self.next_offset = 0
        """The place of the half that comes next."""
        self.doubled_count = 0
        """Halves of which the log tells that they were committed twice. A bug, and an operator's business, if any."""

    def __len__(self) -> int:
        return len(self._undecided)

    # Asked

    def undecided(self) -> Iterator[Half]:
        """All that are, the oldest first or nearly so."""
        return iter(self._undecided.values())

    def get(self, wanted: TransactionId) -> Half | None:
        """The half, if it is undecided. After a cut of the log another may have its place: that is told apart."""
        half = self._undecided.get(wanted.queue_offset)
        if (
            half is None
            or half.physical_offset != wanted.physical_offset
            or (wanted.message_id and half.message_id != wanted.message_id)
        ):
            return None
        return half

    def resolution(self, queue_offset: int) -> tuple[Resolution, bool] | None:
        """How a half ended, and whether that outlives any failure the settings guard against; None: not known (any
        more)."""
        ended = self._ended.get(queue_offset)
        return None if ended is None else (ended.resolution, ended.is_held)

    def oldest(self) -> Half | None:
        """The undecided half that lies first in the log."""
        while self._order:
            half = self._undecided.get(self._order[0])
            if half is not None:
                return half
            heappop(self._order)
        return None

    def undecided_from(self) -> int:
        """Every half below this place has ended."""
        half = self.oldest()
        return self.next_offset if half is None else half.queue_offset

    # Told

    def learn(self, half: Half, *, due_ms: int) -> None:
        self.next_offset = max(self.next_offset, half.queue_offset + 1)
        # What the log had before it was cut there is another's.
        self._ended.pop(half.queue_offset, None)
        self._undecided[half.queue_offset] = half
        heappush(self._order, half.queue_offset)
        self.look_at(half, due_ms=due_ms)

    def end(self, half: Half, resolution: Resolution) -> None:
        """The half is about to end: to be called right before its record is appended."""
        del self._undecided[half.queue_offset]
        self._remember(half.queue_offset, resolution)
        if len(self._order) > 2 * len(self._undecided) + _SLACK or len(self._due) > 4 * len(self._undecided) + _SLACK:
            # One old half must not keep the places of all that have ended since.
            self._order = sorted(self._undecided)
            self._due = sorted([(other.due_ms, place) for place, other in self._undecided.items()])

    def take_back(self, half: Half) -> None:
        """Nothing was appended: it is undecided still."""
        self._ended.pop(half.queue_offset, None)
        self._undecided[half.queue_offset] = half
        heappush(self._order, half.queue_offset)
        heappush(self._due, (half.due_ms, half.queue_offset))

    def held(self, queue_offset: int) -> None:
        """Every copy and flush that the settings ask for was had of the record that ended it."""
        ended = self._ended.get(queue_offset)
        if ended is not None:
            ended.is_held = True

    def read_op(self, tag: str, properties: dict[str, str], body: bytes) -> list[Half]:
        """A record of OP_TOPIC, as it is met in the log; the halves that were asked after."""
        places = op_offsets(body)
        checked: list[Half] = []
        if tag == _CHECKED_TAG:
            for place in places:
                half = self._undecided.get(place)
                if half is not None:
                    half.check_count += 1
                    checked.append(half)
            return checked
        if tag != OP_TAG:
            return checked
        told = properties.get(PROPERTY_TRANSACTION_RESOLUTION, "")
        is_again = told.endswith(_AGAIN)
        told = told.removesuffix(_AGAIN)
        # RocketMQ does not say how: a rollback is what nobody can take for a message that is there.
        resolution = Resolution(told) if told in _RESOLUTIONS else Resolution.ROLLBACK
        for place in places:
            half = self._undecided.pop(place, None)
            before = self._ended.get(place)
            if half is not None or before is None:
                self._remember(place, resolution)
            elif resolution is Resolution.COMMIT and before.resolution is Resolution.COMMIT and not is_again:
                self.doubled_count += 1
        return checked

    def forget(self, half: Half) -> None:
        """Its record is gone from the log."""
        self._undecided.pop(half.queue_offset, None)

    def look_at(self, half: Half, *, due_ms: int) -> None:
        """It is to be looked at then, and not before."""
        half.due_ms = due_ms
        heappush(self._due, (due_ms, half.queue_offset))

    def take_due(self, now_ms: int, *, count_max: int) -> list[Half]:
        """Some of those to be looked at now. Each is the caller's to name another time for."""
        found: list[Half] = []
        while self._due and len(found) < count_max and self._due[0][0] <= now_ms:
            due_ms, place = heappop(self._due)
            half = self._undecided.get(place)
            if half is not None and half.due_ms == due_ms:
                found.append(half)
        return found

    def has_due(self, now_ms: int) -> bool:
        """Whether there are more of them."""
        return bool(self._due) and self._due[0][0] <= now_ms

    def _remember(self, place: int, resolution: Resolution) -> None:
        self._ended[place] = _Ended(resolution)
        self._ended.move_to_end(place)
        if len(self._ended) > self._remembered_max:
            self._ended.popitem(last=False)


_AGAIN: Final = "_AGAIN"
"""Behind the resolution of a record that says once more what one before it has said."""
_RESOLUTIONS: Final = frozenset(resolution.value for resolution in Resolution)


# The records.


def half_of(message: OutgoingMessage, *, immunity_s: int) -> OutgoingMessage:
    """A message as it waits for its transaction's end: RocketMQ's TransactionalMessageBridge.parseHalfMessageInner."""
    added = [
        (PROPERTY_TRANSACTION_PREPARED, "true"),
        # A message is indexed by its id first.
        (PROPERTY_TRANSACTION_ID, message.index_keys[0]),
        (PROPERTY_REAL_TOPIC, message.topic),
        (PROPERTY_REAL_QUEUE_ID, str(message.queue_id)),
    ]
    if immunity_s > 0:
        added.append((PROPERTY_CHECK_IMMUNITY_S, str(immunity_s)))
    return OutgoingMessage(
        HALF_TOPIC,
        0,
        message.body,
        message.properties + encode_properties(added),
        message.tags_code,
        message.index_keys,
        message.tag,
        message.born_timestamp_ms,
        message.born_host,
        message.flag,
        message.sys_flag,
    )


def half_of_record(record: MessageRecord) -> Half | None:
    """A half as the log has it; None for a record that does not say where it belongs."""
    properties = decode_properties(record.properties)
    topic = properties.get(PROPERTY_REAL_TOPIC)
    queue_id = properties.get(PROPERTY_REAL_QUEUE_ID, "")
    if not topic or not queue_id.isdigit():
        return None
    immunity_s = properties.get(PROPERTY_CHECK_IMMUNITY_S, "")
    check_count = properties.get(PROPERTY_TRANSACTION_CHECK_TIMES, "")
    return Half(
        record.queue_offset,
        record.physical_offset,
        topic,
        int(queue_id),
        properties.get(PROPERTY_UNIQUE_KEY, ""),
        record.store_timestamp_ms,
        int(immunity_s) * 1_000 if immunity_s.isdigit() else 0,
        int(check_count) if check_count.isdigit() else 0,
    )


def committed_copy(record: MessageRecord, *, topic: str, queue_id: int, is_given_up: bool = False) -> OutgoingMessage:
    """The message that a half becomes: RocketMQ's EndTransactionProcessor.endMessageTransaction. One that is given up
    goes elsewhere and keeps where it belonged."""
    properties = record.properties
    if not is_given_up:
        properties = _without(_without(properties, PROPERTY_REAL_TOPIC), PROPERTY_REAL_QUEUE_ID)
    return copy_of_record(
        record,
        topic,
        queue_id,
        decode_properties(record.properties),
        encoded=properties,
        flags=0 if is_given_up else TRANSACTION_COMMIT,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.physical_offset,
    )


def _without(properties: bytes, name: str) -> bytes:
    """A property string without one of its pairs, the others as they were."""
    wanted = f"{name}\x01".encode()
    start = 0 if properties.startswith(wanted) else properties.find(b"\x02" + wanted) + 1
    if start == 0 and not properties.startswith(wanted):
        return properties
    end = properties.find(b"\x02", start)
    # RocketMQ before 5.2 leaves the last separator out.
    return properties[:start] if end < 0 else properties[:start] + properties[end + 1 :]


def op_record(
    queue_offset: int,
    resolution: Resolution,
    *,
    undecided_from: int,
    host: Host,
    wall_ms: int,
    is_again: bool = False,
) -> OutgoingMessage:
    properties = [
        (PROPERTY_TAGS, OP_TAG),
        (PROPERTY_TRANSACTION_RESOLUTION, resolution.value + _AGAIN if is_again else resolution.value),
        (PROPERTY_TRANSACTION_UNDECIDED_FROM, str(undecided_from)),
    ]
    return _op(OP_TAG, properties, [queue_offset], host=host, wall_ms=wall_ms)


def check_record(queue_offsets: Sequence[int], *, undecided_from: int, host: Host, wall_ms: int) -> OutgoingMessage:
    """Tells that the producers of these halves were asked once more. Nobody waits for it."""
    properties = [(PROPERTY_TAGS, _CHECKED_TAG), (PROPERTY_TRANSACTION_UNDECIDED_FROM, str(undecided_from))]
    message = _op(_CHECKED_TAG, properties, queue_offsets, host=host, wall_ms=wall_ms)
    message.wait_store_ok = False
    return message


def _op(
    tag: str, properties: list[tuple[str, str]], places: Sequence[int], *, host: Host, wall_ms: int
) -> OutgoingMessage:
    return OutgoingMessage(
        OP_TOPIC, 0, op_body(places), encode_properties(properties), tags_code(tag), (), tag, wall_ms, host
    )
