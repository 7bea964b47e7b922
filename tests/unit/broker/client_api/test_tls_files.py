"""The client port's certificate is read again when its files change."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from support.manual_time import ManualTime
from tandemmq.service.certificates import TlsFiles


def make_certificate(folder: Path, name: str) -> None:
    request = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}"
    paths = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")]
    subprocess.run(["openssl", *request.split(), *paths], check=True, capture_output=True)


@pytest.fixture
def files(tmp_path: Path, time: ManualTime) -> TlsFiles:
    for name in ("first", "second"):
        make_certificate(tmp_path, name)
    link(tmp_path, "first")
    return TlsFiles(f"{tmp_path}/tls.crt", f"{tmp_path}/tls.key", protocols=("h2",), clock=time)


def link(folder: Path, name: str, *, kinds: tuple[str, ...] = ("crt", "key")) -> None:
    """As Kubernetes changes a mounted Secret: by another target of a link."""
    for kind in kinds:
        (folder / f"tls.{kind}").unlink(missing_ok=True)
        (folder / f"tls.{kind}").symlink_to(folder / f"{name}.{kind}")


def shown_by(context: ssl.SSLContext) -> bytes:
    """The certificate a client is shown."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    client_in, client_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(client_in, client_out)
    server = context.wrap_bio(client_out, client_in, server_side=True)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    found = client.getpeercert(binary_form=True)
    assert found is not None
    return found


def certificate(folder: Path, name: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert((folder / f"{name}.crt").read_text())


def test_new_connections_get_the_new_certificate_and_open_ones_keep_theirs(
    files: TlsFiles, tmp_path: Path, time: ManualTime
) -> None:
    before = files.context()
    assert shown_by(before) == certificate(tmp_path, "first")
    link(tmp_path, "second")
    time.advance(1_000)
    assert shown_by(files.context()) == certificate(tmp_path, "second")
    assert shown_by(before) == certificate(tmp_path, "first")


def test_files_are_looked_at_once_a_second(files: TlsFiles, tmp_path: Path, time: ManualTime) -> None:
    link(tmp_path, "second")
    time.advance(999)
    assert shown_by(files.context()) == certificate(tmp_path, "first")


@pytest.mark.parametrize("damage", ["half", "gone", "no certificate"])
def test_files_that_do_not_fit_together_leave_the_old_certificate_until_they_do(
    files: TlsFiles, tmp_path: Path, time: ManualTime, damage: str
) -> None:
    if damage == "half":
        link(tmp_path, "second", kinds=("crt",))
    elif damage == "gone":
        (tmp_path / "tls.key").unlink()
    else:
        (tmp_path / "tls.crt").unlink()
        (tmp_path / "tls.crt").write_text("no certificate")
    for _ in range(3):
        time.advance(1_000)
        assert shown_by(files.context()) == certificate(tmp_path, "first")
    link(tmp_path, "second")
    time.advance(1_000)
    assert shown_by(files.context()) == certificate(tmp_path, "second")


@pytest.mark.parametrize(("from_days", "days"), [(-9, 1), (5, 1)], ids=["expired", "not valid yet"])
def test_a_certificate_that_does_not_count_is_not_taken_while_the_old_one_does(
    files: TlsFiles, tmp_path: Path, time: ManualTime, from_days: int, days: int
) -> None:
    day_ms, now = 86_400_000, datetime.now(UTC)
    # The clock stands where the first one counts.
    time.advance(int(now.timestamp() * 1_000) - time.wall_ms() + 60_000)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + timedelta(days=from_days))
        .not_valid_after(now + timedelta(days=from_days + days))
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "odd.crt").write_bytes(made.public_bytes(Encoding.PEM))
    (tmp_path / "odd.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    link(tmp_path, "odd")
    for _ in range(2):
        time.advance(1_000)
        assert shown_by(files.context()) == certificate(tmp_path, "first")
    # The first one lasts for two days; one that does not count yet does then, and of two that have expired the new one
    # is shown.
    time.advance(5 * day_ms + 3_600_000)
    assert shown_by(files.context()) == certificate(tmp_path, "odd")
