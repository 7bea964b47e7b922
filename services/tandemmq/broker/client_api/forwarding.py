"""Passes clients' calls on, as bytes: of a member that is not master to its group's master (`CallForwarder`), and of
any broker to the master of another broker group (`GroupCalls`).

Official clients ask for routes each 30 s. Until then they call a broker that was master. In a group that fails over it
forwards all of their calls; where roles are fixed only how deliveries end: consumers may have got them from this slave,
while there was no master. Where no master is known the member answers itself: it refuses at once. What tells where
masters are (QueryRoute, QueryAssignment) it answers itself, too.

While a change of master is under way there is nobody to ask, and soon there will be. Official clients repeat a call
that fails at once, three times in all, and give up; Go leaves the broker alone for ten seconds then. So a call that
nobody has seen yet is held back until there is a master, or almost until its deadline, and then taken as if it came
just now.

Clients also call the wrong group: Rust sends receives and acknowledgements to the access point, others RecallMessage,
and each language finds another home for a message group. There the handler, who has read the request, names the group
that it is for. What the owner does not answer, the handler refuses in the body: clients understand that.

A call takes each of the two steps at most once, whatever routes say: `FORWARDED_HEADER` tells which it took. It keeps
its caller's headers and what is left of its deadline. So the broker that answers signs the caller in itself, by the
caller's own signature; only for the address it came from there is a word of ours, with a mark that brokers alone can
make (`CALLER_HEADER`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
import structlog

from tandemmq.broker.client_api.forward_tls import BrokerChannels, PlainChannels
from tandemmq.broker.client_api.sessions import by_address
from tandemmq.broker.client_api.validation import Code, Outcome
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import (
    CALLER_HEADER,
    FORWARDED_HEADER,
    RECEIVE_HEADER,
    UNREAD,
    Call,
    StreamHandler,
    new_receive_name,
)

log = structlog.get_logger(__name__)

# What FORWARDED_HEADER holds: a digit for each step taken.
_BY_MEMBER: Final = "1"
_BY_GROUP: Final = "2"
# The connection's own, or made anew.
_OWN_HEADERS: Final = frozenset({"te", "content-type", "user-agent", "host", FORWARDED_HEADER, CALLER_HEADER})
_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_ANSWERED_HERE: Final = frozenset({"QueryRoute", "QueryAssignment"})
SETTLING: Final = frozenset({"AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"})
_STREAMED: Final = frozenset({"ReceiveMessage", "PullMessage"})
_RECEIVE: Final = _SERVICE + "ReceiveMessage"
_WITH_MESSAGES: Final = 3
"""So many answers has a receive that got something, at least: a status, a message, and the time."""
_TELL_LIMIT_S: Final = 5.0
_TELL_PAUSE_S: Final = 0.5
_TOLD_WITHIN_MS: Final = 60_000
"""A change of master is over by then."""
_TELLS_MAX: Final = 2_048
_TELLS_END_S: Final = 1.0
"""What a broker that stops waits for the last of them."""
_HELD: Final = SETTLING | {"SendMessage", "ReceiveMessage", "EndTransaction", "RecallMessage", "Heartbeat"}
_HELD_MAX: Final = 1_024
_HELD_BYTES_MAX: Final = 32 << 20
_HELD_LIMIT_MS: Final = 10_000
_HELD_MARGIN_MS: Final = 300
"""What is left of a held call's deadline for its answer, and for the way."""
_HELD_LOOK_S: Final = 0.02
_ASKED_AGAIN_MS: Final = 100
"""After which the master that was changing is asked again."""
_CHANGING: Final = "the group's master is changing just now; ask again"
"""By which a member knows that its call was not carried out, and waits for the next master."""
_IN_FLIGHT_MAX: Final = 2_048
_BYTES_MAX: Final = 64 << 20
"""Of the requests under way: to the group's master, and to all other groups."""
_UNREAD_MAX: Final = 64
_LIMIT_S: Final = 30.0
_MESSAGE_BYTES_MAX: Final = 64 << 20


_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    # A machine that falls silent closes no connection. Its deadline does not end a call whose request gRPC is writing
    # when the kernel takes no more; the end of the connection does.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # One ping is under way at a time, be it the keepalive's or one that measures the way: by default that has 60 s.
    ("grpc.http2.ping_timeout_ms", 5_000),
)

Vouch: TypeAlias = Callable[[Call], str]
"""What tells another broker where a call, which is passed on to it, came from."""


class _Room:
    """How much is under way, in calls or in bytes, and whose it is. One caller may have all of it; whoever has less
    than an equal share finds room beside, in which all together have as much again. Callers that nobody knows, the
    empty name, have half."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        self.total = 0

    def has(self, whose: str, size: int, limit: int) -> bool:
        """Whether `size` more is within `limit`."""
        total = self.total + size
        if not whose:
            return total <= limit // 2
        return total <= limit or (total <= 2 * limit and self._of[whose] + size <= limit // (len(self._of) + 1))

    def take(self, whose: str, size: int) -> None:
        self.total += size
        self._of[whose] += size

    def give_back(self, whose: str, size: int) -> None:
        self.total -= size
        self._of[whose] -= size
        if not self._of[whose]:
            del self._of[whose]


class _Calls:
    """Calls under way to other brokers, and one channel for each of these. Event loop only."""

    def __init__(
        self, now_ms: Callable[[], int], *, channels_max: int, vouch: Vouch | None, brokers: BrokerChannels | None
    ) -> None:
        self._now_ms = now_ms
        self._vouch = vouch
        self._brokers = brokers or PlainChannels()
        self._generation = self._brokers.generation()
        self._channels_max = channels_max
        # By endpoint, the one used last at the end.
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Those of them that tell a giver of messages that they may be unread.
        self._tells: set[asyncio.Task[None]] = set()
        self.room = _Room()

    def __len__(self) -> int:
        return len(self._tasks) - len(self._tells)

    def channel(self, endpoint: str) -> grpc.aio.Channel:
        """Made if there is none; the one that was not used for longest gives way, after the calls it carries."""
        generation = self._brokers.generation()
        if generation != self._generation:
            self._generation = generation
            for former in self._channels.values():
                self.spawn(_closed(former))
            self._channels.clear()
        channel = self._channels.pop(endpoint, None)
        if channel is None:
            if len(self._channels) >= self._channels_max:
                oldest = next(iter(self._channels))
                self.spawn(_closed(self._channels.pop(oldest)))
            channel = self._brokers.channel(endpoint, _CHANNEL_OPTIONS)
        self._channels[endpoint] = channel
        return channel

    def spawn(
        self, work: Coroutine[Any, Any, None], call: Call | None = None, whose: str | None = None
    ) -> asyncio.Task[None]:
        """Runs `work`, which counts in `room` if somebody's it is; the end of `call` ends it. Should it fail, the call
        alone ends: nothing else depends on it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, call=call))
        if whose is not None:
            self.room.take(whose, 1)
            task.add_done_callback(lambda _: self.room.give_back(whose, 1))
        if call is not None:
            call.on_cancel(lambda: _cancel(task))
        return task

    def _ended(self, task: asyncio.Task[None], *, call: Call | None) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("call_not_passed_on", consequence="this call ends; its client tries again", exc_info=error)
        if call is not None:
            call.finish(grpc.StatusCode.UNAVAILABLE, "the group's master did not answer; try again")

    @property
    def now_ms(self) -> int:
        return self._now_ms()

    def tell(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` for a while after the calls have ended. Beyond a bound it is not done, and that is logged."""
        if len(self._tells) >= _TELLS_MAX:
            work.close()
            log.warning("unread_not_told", reason=f"{_TELLS_MAX} others wait", consequence=_NOT_TOLD)
            return
        task = self.spawn(work)
        self._tells.add(task)
        task.add_done_callback(self._tells.discard)

    def metadata_of(self, call: Call, step: str) -> list[tuple[str, str]]:
        """What the other broker has to know of the caller, and which steps the call took."""
        passed = [
            (name, value)
            for name, value in call.metadata.items()
            if not name.startswith((":", "grpc-")) and name not in _OWN_HEADERS
        ]
        if self._vouch is not None:
            passed.append((CALLER_HEADER, self._vouch(call)))
        return [*passed, (FORWARDED_HEADER, call.header(FORWARDED_HEADER) + step)]

    def limit_s(self, call: Call) -> float:
        """What is left of the call's deadline."""
        deadline_ms = call.deadline_ms
        return _LIMIT_S if deadline_ms is None else max(0.001, (deadline_ms - self._now_ms()) / 1_000)

    async def close(self, *, is_stopping: bool) -> None:
        """Ends all that is under way. `is_stopping`: what has to be told is told before."""
        for task in [*(self._tasks - self._tells)]:
            task.cancel()
        # What is cancelled may have something to tell as well.
        await asyncio.sleep(0)
        if self._tells and is_stopping:
            await asyncio.wait([*self._tells], timeout=_TELLS_END_S)
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(grace=None)


async def _answers(
    channel: grpc.aio.Channel,
    path: str,
    data: bytes,
    answered: Callable[[bytes], object],
    *,
    limit_s: float,
    metadata: list[tuple[str, str]],
) -> None:
    """Makes the call and hands its answers on. Raises AioRpcError."""
    if path.removeprefix(_SERVICE) in _STREAMED:
        async for answer in channel.unary_stream(path, None, None)(data, timeout=limit_s, metadata=metadata):
            answered(answer)
    else:
        answered(await channel.unary_unary(path, None, None)(data, timeout=limit_s, metadata=metadata))


_NOT_TOLD: Final = "the messages stay with their client until it acknowledges them, is gone, or three hours are over"


class _PassedReceive:
    """A receive that is passed on. Whoever gives its messages sees a caller who got the answer; if it may be lost from
    here on, the giver is told by the same receive once more, which says so: whoever is the master by then, as
    `channel` finds it. `here` tells this broker, if it is that one."""

    def __init__(
        self,
        calls: _Calls,
        channel: Callable[[], grpc.aio.Channel | None],
        here: Callable[[Call, str], bool],
        call: Call,
        data: bytes,
        step: str,
    ) -> None:
        self._calls = calls
        self._channel = channel
        self._here = here
        self._call = call
        self._data = data
        self._step = step
        self._name = call.header(RECEIVE_HEADER) or new_receive_name()
        self._answer_count = 0
        self._is_told = False

    def metadata(self, mark: str = "") -> list[tuple[str, str]]:
        """See `_Calls.metadata_of`."""
        passed = self._calls.metadata_of(self._call, self._step)
        return [*(one for one in passed if one[0] != RECEIVE_HEADER), (RECEIVE_HEADER, mark + self._name)]

    def answered(self, answer: bytes) -> None:
        self._answer_count += 1
        if self._answer_count == _WITH_MESSAGES:
            self._call.on_undelivered(self._unread)
            self._call.on_unread(self._unread)
        self._call.send_encoded(answer)

    def failed(self) -> None:
        """The caller is told of a failure behind the answers that it was sent, and drops them. Those that did not come
        here their giver knows as unread, unless it has ended as a master, and we are the next one."""
        if self._answer_count:
            self._unread()
        else:
            self._here(self._call, self._name)

    def _unread(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._calls.tell(self._tell())

    async def _tell(self) -> None:
        until_ms = self._calls.now_ms + _TOLD_WITHIN_MS
        try:
            while not (self._here(self._call, self._name) or await self._is_heard()):
                if self._calls.now_ms >= until_ms:
                    log.warning("unread_not_told", reason="no master has answered", consequence=_NOT_TOLD)
                    return
                await asyncio.sleep(_TELL_PAUSE_S)
        except asyncio.CancelledError:
            self._here(self._call, self._name)
            raise

    async def _is_heard(self) -> bool:
        """By the master of now."""
        answers: list[bytes] = []
        if (channel := self._channel()) is None:
            return False
        try:
            await _answers(
                channel, _RECEIVE, self._data, answers.append, limit_s=_TELL_LIMIT_S, metadata=self.metadata(UNREAD)
            )
        except (grpc.aio.AioRpcError, grpc.aio.UsageError):
            return False
        return any(_keeps_leases(answer) for answer in answers)


def _keeps_leases(answer: bytes) -> bool:
    """It is of a broker that has done what it was told: there are no messages in it, and no other refusal."""
    code: int = pb.ReceiveMessageResponse.FromString(answer).status.code
    return code == Code.MESSAGE_NOT_FOUND


# From a member to its group's master.


class HeldOutcome(StrEnum):
    """What became of a call while its group changed its master."""

    TAKEN = "taken"
    """By the next master, this broker or another."""
    NO_MASTER = "no_master"
    """There was none before the time was over; it was refused."""
    CALLER_GONE = "caller_gone"
    NO_ROOM = "no_room"
    """Too many waited; it was refused at once."""


class _HeldCall:
    """A call that waits for the end of a change of master."""

    __slots__ = ("again", "data", "deadline_ms", "earliest_ms", "is_gone", "whose")

    def __init__(
        self, whose: str, data: bytes, again: Callable[[bytes], None], *, earliest_ms: int, deadline_ms: int
    ) -> None:
        self.whose = whose
        self.data = data
        self.again = again
        self.earliest_ms = earliest_ms
        self.deadline_ms = deadline_ms
        self.is_gone = False

    def gone(self) -> None:
        """Its caller waits no more."""
        self.is_gone = True


class CallForwarder:
    """`master` names the client plane of the master, host:port; None: there is none, or it is this broker. `names` are
    the methods that it passes on; None: all. `is_changing` tells that there is no master and soon will be.

    Event loop only.
    """

    def __init__(
        self,
        master: Callable[[], str | None],
        *,
        now_ms: Callable[[], int],
        names: frozenset[str] | None = None,
        vouch: Vouch | None = None,
        is_changing: Callable[[], bool] = lambda: False,
        brokers: BrokerChannels | None = None,
        whose: Callable[[Call], str] = by_address,
        unread_here: Callable[[Call, str], bool] = lambda _call, _name: False,
    ) -> None:
        """`brokers`: how they are reached; None: without TLS. `whose`: whom a call is counted for; empty: its caller
        could not sign in here. `unread_here`: the client of a call may not have read the answer to the receive of
        that name; False: another broker is the master."""
        self._master = master
        self._unread_here = unread_here
        self._whose = whose
        self._names = names
        self._now_ms = now_ms
        self._is_changing = is_changing
        self._calls = _Calls(now_ms, channels_max=1, vouch=vouch, brokers=brokers)
        # Of the requests under way to the master.
        self._bytes = _Room()
        self._held: list[_HeldCall] = []
        self._held_room = _Room()
        self._held_bytes = _Room()
        self._look: asyncio.TimerHandle | None = None
        self._holds = True
        self.forwarded_count = 0
        self.held_counts: Final[dict[str, int]] = dict.fromkeys(HeldOutcome, 0)
        """Calls that wait no more, and those there was no room for."""

    @property
    def held_count(self) -> int:
        """Calls that wait now."""
        return len(self._held)

    def takes(self, path: str, call: Call, data: bytes, again: Callable[[bytes], None]) -> bool:
        """Answers the call later, by the master's answer. False: it is this broker's to answer. `again` has a call that
        was held back taken anew."""
        if path.removeprefix(_SERVICE) in _HELD and self._is_changing():
            if _BY_MEMBER in call.header(FORWARDED_HEADER):
                # The member that passed it on took us for the master: it knows who comes next as soon as we do.
                call.finish(grpc.StatusCode.UNAVAILABLE, _CHANGING)
                return True
            if self._holds and self._holds_back(call, data, again, pause_ms=0):
                return True
        channel = self._channel_for(path, call)
        if channel is None:
            return False
        whose = self._whose(call)
        # A single request always passes: the port's own limit judges its size.
        has_room = self._bytes.total == 0 or self._bytes.has(whose, len(data), _BYTES_MAX)
        if not (has_room and self._calls.room.has(whose, 1, _IN_FLIGHT_MAX)):
            return False
        self.forwarded_count += 1
        self._bytes.take(whose, len(data))
        passing = self._calls.spawn(self._pass_on(channel, path, call, data, again), call, whose)
        passing.add_done_callback(lambda _: self._bytes.give_back(whose, len(data)))
        return True

    def opened(self, path: str, call: Call) -> StreamHandler[Any] | None:
        """The handler of a stream that goes to the master, to be given bytes; None: it is this broker's own."""
        channel = self._channel_for(path, call)
        if channel is None:
            return None
        whose = self._whose(call)
        if not self._calls.room.has(whose, 1, _IN_FLIGHT_MAX):
            return None
        self.forwarded_count += 1
        return _ForwardedStream(self._calls, channel, path, call, whose)

    def let_go(self) -> None:
        """Has all that is held back taken anew now: this broker is the master."""
        self._let_go(self._held, HeldOutcome.TAKEN)

    async def close(self, *, is_stopping: bool = True) -> None:
        """Ends all that is under way: this broker stops, or is the master now. What is still held back it refuses."""
        self._let_go(self._held, HeldOutcome.NO_MASTER)
        await self._calls.close(is_stopping=is_stopping)

    # Inside

    def _holds_back(self, call: Call, data: bytes, again: Callable[[bytes], None], *, pause_ms: int) -> bool:
        """For `pause_ms` at least. False: there is no room, or no time."""
        now_ms = self._now_ms()
        deadline_ms = now_ms + _HELD_LIMIT_MS
        if call.deadline_ms is not None:
            deadline_ms = min(deadline_ms, call.deadline_ms - _HELD_MARGIN_MS)
        if deadline_ms <= now_ms + pause_ms:
            return False
        whose = self._whose(call)
        has_room = self._held_room.has(whose, 1, _HELD_MAX) and self._held_bytes.has(whose, len(data), _HELD_BYTES_MAX)
        if not has_room:
            self.held_counts[HeldOutcome.NO_ROOM] += 1
            return False
        held = _HeldCall(whose, data, again, earliest_ms=now_ms + pause_ms, deadline_ms=deadline_ms)
        self._held.append(held)
        self._held_room.take(whose, 1)
        self._held_bytes.take(whose, len(data))
        call.on_cancel(held.gone)
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(_HELD_LOOK_S, self._look_again)
        return True

    def _look_again(self) -> None:
        self._look = None
        now_ms = self._now_ms()
        if not self._is_changing():
            # A change also ends when nobody has become master for too long.
            due = [held for held in self._held if held.earliest_ms <= now_ms]
            self._let_go(due, HeldOutcome.TAKEN if self._master() else HeldOutcome.NO_MASTER)
        else:
            due = [held for held in self._held if held.is_gone or held.deadline_ms <= now_ms]
            self._let_go(due, HeldOutcome.NO_MASTER)
        if self._held:
            self._look = asyncio.get_running_loop().call_later(_HELD_LOOK_S, self._look_again)

    def _let_go(self, due: list[_HeldCall], outcome: HeldOutcome) -> None:
        """In the order in which they came; none of them is held a second time. `outcome` is for those whose callers
        still wait."""
        over = set(map(id, due))
        calls, self._held = due, [held for held in self._held if id(held) not in over]
        self._holds = False
        try:
            for held in calls:
                self._held_room.give_back(held.whose, 1)
                self._held_bytes.give_back(held.whose, len(held.data))
                self.held_counts[HeldOutcome.CALLER_GONE if held.is_gone else outcome] += 1
                if not held.is_gone:
                    held.again(held.data)
        finally:
            self._holds = True

    def _channel_for(self, path: str, call: Call) -> grpc.aio.Channel | None:
        name = path.removeprefix(_SERVICE)
        if name == path or name in _ANSWERED_HERE:
            return None  # Health and reflection are each broker's own.
        if self._names is not None and name not in self._names:
            return None
        if _BY_MEMBER in call.header(FORWARDED_HEADER):
            return None
        return self._channel_now()

    def _channel_now(self) -> grpc.aio.Channel | None:
        endpoint = self._master()
        return self._calls.channel(endpoint) if endpoint else None

    async def _pass_on(
        self, channel: grpc.aio.Channel, path: str, call: Call, data: bytes, again: Callable[[bytes], None]
    ) -> None:
        limit_s, metadata = self._calls.limit_s(call), self._calls.metadata_of(call, _BY_MEMBER)
        answered: Callable[[bytes], None] = call.send_encoded
        receive: _PassedReceive | None = None
        if path == _RECEIVE:
            receive = _PassedReceive(self._calls, self._channel_now, self._unread_here, call, data, _BY_MEMBER)
            metadata, answered = receive.metadata(), receive.answered
        try:
            await _answers(channel, path, data, answered, limit_s=limit_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            is_changing = error.code() is grpc.StatusCode.UNAVAILABLE and error.details() == _CHANGING
            if receive is not None and not is_changing:
                receive.failed()
            if not is_changing or not self._holds_back(call, data, again, pause_ms=_ASKED_AGAIN_MS):
                call.finish(error.code(), f"the group's master did not answer: {error.details() or error.code().name}")
        except asyncio.CancelledError:
            if receive is not None:
                receive.failed()
            call.finish(grpc.StatusCode.UNAVAILABLE, "the group's master has changed; try again")
            raise
        except Exception:
            if receive is not None:
                receive.failed()
            raise
        else:
            call.finish()


class _ForwardedStream:
    """One bidirectional call. Implements `StreamHandler[bytes]`."""

    def __init__(self, calls: _Calls, channel: grpc.aio.Channel, path: str, call: Call, whose: str) -> None:
        self._call = call
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue(_UNREAD_MAX)
        self._stream = channel.stream_stream(path, None, None)(None, metadata=calls.metadata_of(call, _BY_MEMBER))
        calls.spawn(self._read(), call, whose)
        calls.spawn(self._write(), None, whose)

    def message(self, message: bytes, /) -> None:
        """Passes a request on; a client that sends faster than the master reads is refused."""
        try:
            self._requests.put_nowait(message)
        except asyncio.QueueFull:
            self._call.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, "the group's master does not read so fast")
            self.cancelled()

    def half_closed(self) -> None:
        self._end_requests()

    def cancelled(self) -> None:
        """Ends the call to the master."""
        self._stream.cancel()
        self._end_requests()

    def _end_requests(self) -> None:
        if not self._requests.full():
            self._requests.put_nowait(None)

    async def _write(self) -> None:
        try:
            while (message := await self._requests.get()) is not None:
                await self._stream.write(message)
            await self._stream.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError, asyncio.CancelledError):
            # InternalError: the call had ended when its last request was to be told.
            self._stream.cancel()

    async def _read(self) -> None:
        try:
            async for answer in self._stream:
                self._call.send_encoded(answer)
        except grpc.aio.AioRpcError as error:
            self._call.finish(error.code(), f"the group's master ended the call: {error.details()}")
        except asyncio.CancelledError:
            self._stream.cancel()
            self._call.finish(grpc.StatusCode.UNAVAILABLE, "the group's master has changed; try again")
            raise
        else:
            self._call.finish()
        finally:
            self._end_requests()


# To the master of another broker group.

_GROUPS_MAX: Final = 64
# Under way to one group: those that wait for messages, and all others. One that does not answer holds up no other.
_PER_GROUP_MAX: Final = 1_024
# The refusal must reach the client before its deadline does.
_ANSWER_MARGIN_S: Final = 0.1


def came_from_group(call: Call) -> bool:
    """Another broker group passed the call on to this one, which is to answer it itself."""
    return _BY_GROUP in call.header(FORWARDED_HEADER)


class GroupCalls:
    """`address` names the client plane, host:port, of whoever answers for a broker group of this cluster; None: nobody
    is known to. Event loop only.
    """

    def __init__(
        self,
        address: Callable[[str], str | None],
        *,
        now_ms: Callable[[], int],
        vouch: Vouch | None = None,
        brokers: BrokerChannels | None = None,
        whose: Callable[[Call], str] = by_address,
    ) -> None:
        """`brokers`: how they are reached; None: without TLS. `whose`: whom a call is counted for."""
        self._address = address
        self._whose = whose
        self._calls = _Calls(now_ms, channels_max=_GROUPS_MAX, vouch=vouch, brokers=brokers)
        # By broker group, and whether it waits for messages.
        self._under_way: dict[tuple[str, bool], _Room] = {}
        self._bytes = _Room()
        self.forwarded_counts: Final[dict[str, int]] = {}
        """By method."""
        self.failed_counts: Final[dict[str, int]] = {}
        """By method: those the other group did not answer, or that were not passed on to it."""

    def pass_on(self, method: str, call: Call, *, broker_name: str, refused: Callable[[Outcome], object]) -> None:
        """Has the group `broker_name` answer the call, whose handler is running. `refused` is called at once or later
        with why there is no answer; nothing was sent then, and the call still has to be answered."""
        endpoint = self._address(broker_name)
        if came_from_group(call):
            refusal = _no_answer(broker_name, "the call was passed on before; routes change, try again")
        elif endpoint is None:
            refusal = _no_answer(broker_name, "no master of it is registered")
        elif self._is_full(method, call, broker_name):
            refusal = Outcome(
                Code.TOO_MANY_REQUESTS,
                f"too many calls wait here for broker group {broker_name}; call it directly, or try again later",
                retryable=True,
            )
        else:
            self.forwarded_counts[method] = self.forwarded_counts.get(method, 0) + 1
            self._start(method, call, broker_name, self._calls.channel(endpoint), refused)
            return
        self._failed(method)
        refused(refusal)

    async def close(self) -> None:
        """Ends all that is under way: this broker stops."""
        await self._calls.close(is_stopping=True)

    def _is_full(self, method: str, call: Call, broker_name: str) -> bool:
        whose, size = self._whose(call), len(call.request_data)
        room = self._under_way.get((broker_name, method in _STREAMED))
        # A single request always passes: the port's own limit judges its size.
        is_long = self._bytes.total > 0 and not self._bytes.has(whose, size, _BYTES_MAX)
        return is_long or (room is not None and not room.has(whose, 1, _PER_GROUP_MAX))

    def _failed(self, method: str) -> None:
        self.failed_counts[method] = self.failed_counts.get(method, 0) + 1

    def _start(
        self, method: str, call: Call, broker_name: str, channel: grpc.aio.Channel, refused: Callable[[Outcome], object]
    ) -> None:
        data, key, whose = call.request_data, (broker_name, method in _STREAMED), self._whose(call)
        room = self._under_way.setdefault(key, _Room())
        room.take(whose, 1)
        self._bytes.take(whose, len(data))

        def ended(_: object) -> None:
            self._bytes.give_back(whose, len(data))
            room.give_back(whose, 1)
            if not room.total and self._under_way.get(key) is room:
                del self._under_way[key]

        work = self._pass_on(channel, method, call, data, broker_name, refused)
        self._calls.spawn(work, call).add_done_callback(ended)

    async def _pass_on(
        self,
        channel: grpc.aio.Channel,
        method: str,
        call: Call,
        data: bytes,
        broker_name: str,
        refused: Callable[[Outcome], object],
    ) -> None:
        limit_s = max(0.001, self._calls.limit_s(call) - _ANSWER_MARGIN_S)
        answer_count = 0
        receive: _PassedReceive | None = None
        if _SERVICE + method == _RECEIVE:

            def channel_now() -> grpc.aio.Channel | None:
                endpoint = self._address(broker_name)
                return self._calls.channel(endpoint) if endpoint else None

            receive = _PassedReceive(self._calls, channel_now, lambda _call, _name: False, call, data, _BY_GROUP)

        def answered(answer: bytes) -> None:
            nonlocal answer_count
            answer_count += 1
            if receive is None:
                call.send_encoded(answer)
            else:
                receive.answered(answer)

        try:
            metadata = self._calls.metadata_of(call, _BY_GROUP) if receive is None else receive.metadata()
            await _answers(channel, _SERVICE + method, data, answered, limit_s=limit_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            self._failed(method)
            if receive is not None:
                receive.failed()
            if answer_count:
                call.finish(error.code(), f"broker group {broker_name} ended the call: {error.details()}")
            else:
                refused(_no_answer(broker_name, error.details() or error.code().name))
        except asyncio.CancelledError:
            if receive is not None:
                receive.failed()
            call.finish(grpc.StatusCode.UNAVAILABLE, "the broker is stopping; try another")
            raise
        else:
            call.finish()


def _no_answer(broker_name: str, reason: str) -> Outcome:
    return Outcome(
        Code.PROXY_TIMEOUT, f"broker group {broker_name}, which this is for, did not answer: {reason}", retryable=True
    )


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


async def _closed(channel: grpc.aio.Channel) -> None:
    await channel.close(grace=_LIMIT_S)
