"""Replication with TLS over real sockets: the same log arrives, members alone get in, and each stranger is told why."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from support.certificates import ADMIN, TestCertificates, broker, now
from support.messages import outgoing_message
from support.running_time import PATIENCE_S, until
from support.simulated_disk import SimulatedDisk
from support.stores import new_store, with_options
from tandemmq.broker import ha_transport
from tandemmq.broker.ha_transport import ConnectionBearers, HaTls
from tandemmq.broker.master.ha_listener import HaListener
from tandemmq.broker.slave.ha_connection import HaConnection
from tandemmq.core.access.identity import AdminLevel
from tandemmq.core.replication.frames import MasterOptions, SlaveOptions
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.routing.values import connection_end
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.http2.errors import TlsMode
from tandemmq.service.certificates import CertificateAuthority, CertificateFolder
from tandemmq.service.event_loop import SystemClock

OPTIONS = with_options(commit_log_file_bytes=4 << 20)


class Link:
    """A master that listens, and the slave's end."""

    def __init__(
        self,
        tls: HaTls | None,
        *,
        takes_plain: Callable[[str], bool] = lambda _: False,
        written_apart_bytes_min: int = 1 << 20,
        bearers: ConnectionBearers | None = None,
    ) -> None:
        self.told: list[MutableMapping[str, Any]] = []
        self.masters, self.slaves = (new_store(SimulatedDisk(random.Random(seed)), options=OPTIONS) for seed in (1, 2))
        self.masters.load()
        self.slaves.load()
        self.replica = MasterReplica(self.masters, MasterOptions())
        self.heard = asyncio.Event()
        self.listener = HaListener(
            replica=self.replica,
            log_reader=self.masters,
            clock=SystemClock(),
            after_input=self.heard.set,
            tls=tls,
            takes_plain=takes_plain,
            bearers=bearers,
        )
        self.listener.start(host="127.0.0.1", port=0)
        self.connection = HaConnection(
            log=self.slaves,
            clock=SystemClock(),
            options=SlaveOptions(),
            acknowledged_end=lambda: self.slaves.end_offset,
            appended=lambda: None,
            written_apart_bytes_min=written_apart_bytes_min,
        )

    def put(self, *sizes: int) -> None:
        for size in sizes:
            self.masters.put(outgoing_message(body=random.Random(size).randbytes(size)))
        self.masters.write_appended()

    async def connect(self, tls: HaTls | None) -> socket.socket:
        sock = await self.connection.connect("127.0.0.1", self.listener.port)
        return sock if tls is None else await self.connection.secure(sock, tls)

    async def acknowledged(self) -> None:
        """Returns when a slave has all of it."""
        async with asyncio.timeout(PATIENCE_S):
            while not any(slave.acked_offset == self.masters.end_offset for slave in self.replica.slaves()):
                self.heard.clear()
                self.listener.pump()
                await self.heard.wait()

    async def departed(self) -> str:
        """Why the first connection that ended has ended, as the log tells."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for line in self.told:
                    if line["event"] in ("replication_refused", "slave_disconnected", "slave_link_closed"):
                        return str(line["reason"])
                await asyncio.sleep(0.01)

    def check_equal(self) -> None:
        assert self.slaves.end_offset == self.masters.end_offset
        assert _bytes(self.slaves) == _bytes(self.masters)


def _bytes(store: MessageStore) -> bytes:
    held = b""
    while len(held) < store.end_offset - store.min_offset:
        held += bytes(store.read_log(store.min_offset + len(held), 1 << 20))
    return held


@contextmanager
def linked(tls: HaTls | None, **options: object) -> Iterator[Link]:
    link = Link(tls, **options)  # type: ignore[arg-type]
    with capture_logs() as link.told:
        try:
            yield link
        finally:
            link.listener.stop()


@pytest.fixture
def certificates(tmp_path: Path) -> TestCertificates:
    return TestCertificates(tmp_path)


def _tls(folder: Path, mode: TlsMode = TlsMode.ENFORCING) -> HaTls:
    return HaTls(mode, CertificateFolder(folder, clock=SystemClock()))


@pytest.mark.parametrize("apart", [1, 1 << 30], ids=["thread", "loop"])
async def test_the_slave_gets_the_same_log_small_and_large(certificates: TestCertificates, apart: int) -> None:
    member = {broker_id: _tls(certificates.issue(broker(broker_id))) for broker_id in (0, 1)}
    with linked(member[0], written_apart_bytes_min=apart) as link:
        link.put(*(1 << power for power in range(20)), *[100_000] * 60)
        following = asyncio.create_task(link.connection.follow(await link.connect(member[1])))
        await link.acknowledged()
        for size in (0, 1, 16_300, 16_384, 16_400, 700_000, 5):
            link.put(size)
            link.listener.pump()
            await link.acknowledged()
        link.check_equal()
        link.connection.drop("enough")
        assert await following == "enough"


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
@pytest.mark.parametrize("is_named", [True, False])
async def test_without_tls_come_all_or_those_that_are_named(
    certificates: TestCertificates, mode: TlsMode, is_named: bool
) -> None:
    with linked(_tls(certificates.issue(broker(0)), mode), takes_plain=lambda _: is_named) as link:
        link.put(1_000)
        following = asyncio.create_task(link.connection.follow(await link.connect(None)))
        if mode is TlsMode.PERMISSIVE or is_named:
            await link.acknowledged()
            link.check_equal()
            link.connection.drop("enough")
        else:
            assert "it speaks without TLS" in await link.departed()
            assert link.slaves.end_offset == link.slaves.min_offset
        await following


def _client(certificates: TestCertificates, folder: Path | None) -> ssl.SSLContext:
    """Of somebody who takes any server of our CA for his own."""
    context = ssl.create_default_context(cadata=certificates.authority.pem.decode())
    context.check_hostname = False
    if folder is not None:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ("nobody", "it shows no certificate"),
        ("another CA", "its certificate is not taken: unable to get local issuer certificate"),
        ("self-signed", "its certificate is not taken: self-signed certificate"),
        ("expired", "its certificate is not taken: certificate has expired"),
        ("other group", "its certificate is of broker group broker-b, and this is broker-a"),
        ("other cluster", "its certificate is of cluster OtherCluster, and this is DefaultCluster"),
        ("administrator", "its certificate is for admin, and only brokers replicate"),
    ],
)
@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
async def test_each_wrong_certificate_has_its_own_words(
    certificates: TestCertificates, who: str, words: str, mode: TlsMode
) -> None:
    other = TestCertificates(certificates.root / "other", name="other CA")
    folders: dict[str, Callable[[], Path | None]] = {
        "nobody": lambda: None,
        "another CA": lambda: certificates.of_another_authority(broker(1)),
        "self-signed": lambda: _self_signed(other),
        "expired": lambda: certificates.expired(broker(1)),
        "other group": lambda: certificates.issue(broker(0, group="broker-b")),
        "other cluster": lambda: certificates.issue(broker(1, cluster="OtherCluster")),
        "administrator": lambda: certificates.issue(ADMIN[AdminLevel.REPAIR]),
    }
    with linked(_tls(certificates.issue(broker(0)), mode)) as link:
        link.put(1_000)
        context = _client(certificates, folders[who]())
        heard = b""
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", link.listener.port, ssl=context)
            writer.write(bytes(8))
            async with asyncio.timeout(PATIENCE_S):
                heard = await reader.read(100)
        assert await link.departed() == words
        assert heard == b""
        assert not link.replica.slaves()


def _self_signed(other: TestCertificates) -> Path:
    """A CA's own certificate, shown as if it were a member's."""
    folder = other.root / "self"
    folder.mkdir(parents=True)
    (folder / "tls.crt").write_bytes(other.authority.pem)
    (folder / "tls.key").write_bytes(other.authority.key_pem)
    return folder


@pytest.mark.parametrize(
    ("master", "words"),
    [
        (broker(0, group="broker-b"), "Hostname mismatch"),
        (broker(0, cluster="OtherCluster"), "Hostname mismatch"),
    ],
)
async def test_a_slave_follows_no_master_of_another_group(
    certificates: TestCertificates, master: object, words: str
) -> None:
    with linked(_tls(certificates.issue(master))) as link:  # type: ignore[arg-type]
        with pytest.raises(OSError, match=words):
            await link.connect(_tls(certificates.issue(broker(1))))
        await link.departed()


async def test_a_slave_follows_no_master_of_another_ca(certificates: TestCertificates) -> None:
    other = TestCertificates(certificates.root / "other", name="other CA")
    with linked(_tls(other.issue(broker(0)))) as link:
        with pytest.raises(OSError, match="its certificate is not taken"):
            await link.connect(_tls(certificates.issue(broker(1))))
        await link.departed()


async def test_a_master_without_tls_is_told_by_the_handshake(certificates: TestCertificates) -> None:
    with linked(None) as link:
        with pytest.raises(OSError):
            await link.connect(_tls(certificates.issue(broker(1))))
        await link.departed()


async def test_a_renewed_certificate_counts_for_the_next_connection_and_ends_none(
    certificates: TestCertificates,
) -> None:
    folder = certificates.issue(broker(0))
    server = HaTls(TlsMode.ENFORCING, CertificateFolder(folder, clock=SystemClock()))
    slave = _tls(certificates.issue(broker(1)))
    with linked(server) as link:
        link.put(1_000)
        first = await link.connect(slave)
        following = asyncio.create_task(link.connection.follow(first))
        await link.acknowledged()
        certificates.issue(broker(0))
        # Files are looked at once a second.
        serials = {_serial(first)}
        async with asyncio.timeout(PATIENCE_S):
            while len(serials) == 1:
                sock = await link.connect(slave)
                serials.add(_serial(sock))
                sock.close()
                await asyncio.sleep(0.2)
        link.put(2_000)
        link.listener.pump()
        await link.acknowledged()
        link.check_equal()
        link.connection.drop("enough")
        assert await following == "enough"


class _LaterClock(SystemClock):
    hours = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.hours * 3_600_000


@pytest.mark.parametrize("judge", ["the master, by TLS", "the master, by the proof", "the slave"])
@pytest.mark.parametrize("change", ["it expires", "its CA is not believed any more", "a renewed one comes beside it"])
async def test_an_open_connection_ends_with_its_certificate(
    certificates: TestCertificates, judge: str, change: str
) -> None:
    """The one that judges has a certificate of the next CA already; the other's is old."""
    clock, following_ca = _LaterClock(), CertificateAuthority.new("next CA", now=now(), days=30)
    both = certificates.authority.pem + following_ca.pem
    judges, other = (broker(1), broker(0)) if judge == "the slave" else (broker(0), broker(1))
    folder = certificates.issue(judges, by=following_ca, believes=both)
    old = certificates.issue(other, folder="old", days=1, believes=both)
    judging = CertificateFolder(folder, clock=clock)
    tls = {judges: HaTls(TlsMode.ENFORCING, judging), other: _tls(old)}
    is_plain = judge == "the master, by the proof"
    bearers = ConnectionBearers(judging.caller_problem) if is_plain else None
    with linked(None if is_plain else tls[broker(0)], bearers=bearers) as link:
        link.put(1_000)
        sock = await link.connect(None if is_plain else tls[broker(1)])
        if bearers is not None:
            bearers.note(connection_end(*sock.getsockname()[:2]), (old / "tls.crt").read_bytes())
        following = asyncio.create_task(link.connection.follow(sock))
        await link.acknowledged()
        if change == "it expires":
            clock.hours = 25
        elif change == "its CA is not believed any more":
            certificates.issue(judges, by=following_ca, believes=following_ca.pem)
        else:
            certificates.issue(judges, by=following_ca, believes=both)
            certificates.issue(other, folder="old", believes=both)
            await asyncio.sleep(2.5)
            assert not following.done()
            link.connection.drop("enough")
        async with asyncio.timeout(PATIENCE_S):
            told = await following
        if judge != "the slave" and told != "enough":
            assert told == "closed by the master"
            told = await link.departed()
            assert link.told[-1]["event"] == "replication_refused"
            assert not link.replica.slaves()
        words = {"it expires": "has expired at", "its CA is not believed any more": "is of another CA, CN=test CA"}
        assert words.get(change, "enough") in told


def _serial(sock: socket.socket) -> str:
    assert isinstance(sock, ssl.SSLSocket)
    found = sock.getpeercert()
    assert found is not None
    return str(found["serialNumber"])


async def test_who_never_ends_the_handshake_is_closed(
    certificates: TestCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_transport, "HANDSHAKE_LIMIT_S", 0.3)
    with linked(_tls(certificates.issue(broker(0)))) as link:
        _, writer = await asyncio.open_connection("127.0.0.1", link.listener.port)
        writer.write(b"\x16\x03\x01")
        assert await link.departed() == "its handshake takes too long"
        writer.close()


async def test_a_listener_that_stops_ends_handshakes(certificates: TestCertificates) -> None:
    with linked(_tls(certificates.issue(broker(0)))) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.listener.port)
        writer.write(b"\x16\x03\x01")
        await until(lambda: link.listener._handshakes)
        link.listener.stop()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()
        await asyncio.sleep(0.1)


@given(st.lists(st.binary(max_size=40_000), max_size=12), st.integers(0, 200_000))
def test_records_hold_the_bytes_in_order_and_are_cut_alike_from_where_a_send_ended(
    buffers: list[bytes], sent_records: int
) -> None:
    whole = b"".join(buffers)
    pieces = list(ha_transport._records(buffers))
    assert b"".join(pieces) == whole
    assert all(0 < len(piece) <= 16 << 10 for piece in pieces)
    # OpenSSL wants the piece again that it could not send, whatever went before it.
    done = sent_records % (len(pieces) + 1)
    rest = whole[sum(map(len, pieces[:done])) :]
    assert list(ha_transport._records([rest])) == pieces[done:]
