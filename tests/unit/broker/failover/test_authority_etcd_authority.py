"""The record in etcd: which endpoint is asked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from support.authority_places import EtcdPlace, FakeEtcd, etcd_place
from support.group_records import RECORD
from support.running_time import PATIENCE_S
from tandemmq.broker.failover.authority import AuthorityUnavailable, EtcdTls, SwapLost, open_authority
from tandemmq.proto.etcdserverpb import kv_pb2_grpc
from tandemmq.service.certificates import CertificateAuthority


@pytest.fixture
async def place() -> AsyncIterator[EtcdPlace]:
    async with etcd_place() as place:
        yield place


@pytest.mark.parametrize("is_listening", [False, True])
async def test_next_endpoint_is_asked_where_one_is_away_or_mute(place: EtcdPlace, is_listening: bool) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        if is_listening:
            mute.listen()
        setting = place.setting.replace("etcd:", f"etcd:127.0.0.1:{mute.getsockname()[1]},")
        authority = open_authority(setting, cluster="DefaultCluster", broker_name="broker-a")
        async with asyncio.timeout(PATIENCE_S):
            created = await authority.swap(None, RECORD)
            assert await authority.read() == created
            await authority.swap(created, replace(RECORD, renewals=1))
        assert place.writes() == 2
        await authority.close()


async def test_a_revision_that_comes_again_behind_a_backup_is_another_version(place: EtcdPlace) -> None:
    """Who slept meanwhile would replace the record of another master, and be one beside it."""
    sleeper, other = place.open(), place.open()
    async with asyncio.timeout(PATIENCE_S):
        first = await sleeper.swap(None, RECORD)
        backup = place.etcd.revision, dict(place.etcd.values)
        slept = await sleeper.swap(first, replace(RECORD, renewals=RECORD.renewals + 1))
        place.etcd.revision, place.etcd.values = backup[0], dict(backup[1])
        theirs = replace(RECORD, epoch=RECORD.epoch + 7, nonce="another")
        restored = await other.read()
        assert restored is not None
        again = await other.swap(restored, theirs)
        assert again.version == slept.version
        with pytest.raises(SwapLost):
            await sleeper.swap(slept, replace(slept.record, renewals=slept.record.renewals + 1))
        held = await sleeper.read()
        assert held == again
        renewed = await sleeper.swap(held, replace(theirs, renewals=theirs.renewals + 1))
        assert await other.read() == renewed
    await sleeper.close()
    await other.close()


async def test_key_names_prefix_cluster_and_group(place: EtcdPlace) -> None:
    authority = open_authority(place.setting.removesuffix("/test/records"), cluster="c/1", broker_name="b")
    await authority.swap(None, RECORD)
    assert list(place.etcd.values) == [b"/tandemmq/c%2F1/b"]
    await authority.close()


# Encrypted.


def new_authority() -> CertificateAuthority:
    return CertificateAuthority.new("etcd's CA", now=datetime.now(UTC), days=2)


def certificate(authority: CertificateAuthority) -> tuple[bytes, bytes]:
    """For localhost, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM), text


@asynccontextmanager
async def encrypted_etcd(authority: CertificateAuthority, *, port: int = 0) -> AsyncIterator[str]:
    """Asks callers for certificates of the same CA; the setting that names it."""
    chain, key = certificate(authority)
    credentials = grpc.ssl_server_credentials([(key, chain)], authority.pem, require_client_auth=True)
    server = grpc.aio.server()
    kv_pb2_grpc.add_KVServicer_to_server(FakeEtcd(), server)
    port = server.add_secure_port(f"localhost:{port}", credentials)
    await server.start()
    try:
        yield f"etcd:localhost:{port}"
    finally:
        await server.stop(None)


def write_files(folder: Path, authority: CertificateAuthority) -> EtcdTls:
    chain, key = certificate(authority)
    paths = [folder / name for name in ("ca.pem", "cert.pem", "key.pem")]
    for path, data in zip(paths, (authority.pem, chain, key), strict=True):
        path.write_bytes(data)
    return EtcdTls(*map(str, paths))


async def test_a_certificate_is_shown_and_asked_for(tmp_path: Path) -> None:
    ours = new_authority()
    tls = write_files(tmp_path, ours)
    async with encrypted_etcd(ours) as setting:
        authority = open_authority(setting, cluster="c", broker_name="b", tls=tls)
        async with asyncio.timeout(PATIENCE_S):
            created = await authority.swap(None, RECORD)
            assert await authority.read() == created
        await authority.close()
        for other in (None, replace(tls, cert_path="", key_path="")):
            stranger = open_authority(setting, cluster="c", broker_name="b", tls=other)
            with pytest.raises(AuthorityUnavailable):
                await stranger.read()
            await stranger.close()


async def test_renewed_files_are_used_without_a_restart(tmp_path: Path) -> None:
    tls = write_files(tmp_path, new_authority())
    later = new_authority()
    async with encrypted_etcd(later) as setting:
        authority = open_authority(setting, cluster="c", broker_name="b", tls=tls)
        with pytest.raises(AuthorityUnavailable):
            await authority.read()
        write_files(tmp_path, later)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    assert await authority.read() is None
                except AuthorityUnavailable:
                    continue
                break
        # Those in use stay while there are none.
        Path(tls.ca_path).unlink()
        assert await authority.read() is None
        await authority.close()


async def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    missing = EtcdTls(str(tmp_path / "ca.pem"))
    authority = open_authority("etcd:localhost:1", cluster="c", broker_name="b", tls=missing)
    with pytest.raises(AuthorityUnavailable, match=r"ca\.pem cannot be read .*failoverAuthorityCaPath"):
        await authority.read()
    await authority.close()
