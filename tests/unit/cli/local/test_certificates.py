"""Certificates of a local cluster: who gets which, what is renewed, and what the commands say of them."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from support.running_time import PATIENCE_S, run_program
from tandemmq.cli.app import app
from tandemmq.cli.ending import CommandError
from tandemmq.cli.local.certificates import ClusterCertificates, authority_in, caller_certificate, member_identity
from tandemmq.cli.local.folder import ClusterFolder, ClusterRecord, Member, lay_out, read_members, start_mark
from tandemmq.core.access.identity import AdminLevel, Identity, Role
from tandemmq.service.certificates import CertificateAuthority, read_certificates, write_certificates

runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.prepare()
    return folder


def _members(folder: ClusterFolder) -> list[Member]:
    return read_members(folder, lay_out(folder, None), {})


def _identities(folder: ClusterFolder) -> dict[str, Identity]:
    now = datetime.now(UTC)
    return {each.name: read_certificates(each, now=now).identity for each in ClusterCertificates(folder).folders()}


def test_each_member_has_a_certificate_of_its_own_and_people_and_the_job_have_theirs(folder: ClusterFolder) -> None:
    members = _members(folder)
    ClusterCertificates(folder).make(members)
    found = _identities(folder)
    assert set(found) == {member.name for member in members} | {"admin", "consistency"}
    assert all(found[member.name] == member_identity(member) for member in members)
    assert found["admin"].level is AdminLevel.REPAIR
    assert found["consistency"].role is Role.CONSISTENCY
    assert folder.certs.stat().st_mode & 0o077 == 0


def test_good_certificates_stay_and_missing_unusable_and_ending_ones_are_made(folder: ClusterFolder) -> None:
    certificates = ClusterCertificates(folder)
    members = _members(folder)
    certificates.make(members)
    assert certificates.make(members) == []
    (folder.certs / "admin" / "tls.crt").write_text("nothing")
    authority = authority_in(folder.certs / "ca", name="x")
    ending = member_identity(members[0])
    chain, key = authority.issue(ending, now=datetime.now(UTC), days=0.001)
    write_certificates(folder.certs / members[0].name, chain=chain, key=key, authorities=authority.pem)
    assert {each.name for each in certificates.make(members)} == {"admin", members[0].name}
    assert certificates.make(members) == []


def test_a_member_that_was_renamed_gets_another_certificate(folder: ClusterFolder) -> None:
    certificates = ClusterCertificates(folder)
    certificates.make(_members(folder))
    (broker, *_) = (member for member in _members(folder) if member.role == "SYNC_MASTER")
    renamed = Member(broker.name, {**broker.settings, "brokerName": "other"})
    assert [each.name for each in certificates.make([renamed])] == [broker.name]
    assert _identities(folder)[broker.name].group == "other"


def test_names_that_cannot_stand_in_a_certificate_are_refused(folder: ClusterFolder) -> None:
    (broker, *_) = (member for member in _members(folder) if member.role == "SYNC_MASTER")
    with pytest.raises(CommandError, match="cannot have a certificate"):
        member_identity(Member(broker.name, {**broker.settings, "brokerName": "a b"}))


def test_commands_show_the_administrators_certificate_of_a_closed_folder_only(folder: ClusterFolder) -> None:
    assert caller_certificate(None) is None
    assert caller_certificate(folder.root) is None
    ClusterCertificates(folder).make(_members(folder))
    found = caller_certificate(folder.root)
    assert found is not None
    assert found.folder.current().identity.role is Role.ADMIN
    (folder.certs / "admin" / "tls.key").unlink()
    with pytest.raises(CommandError, match="cannot be used"):
        caller_certificate(folder.root)


def test_make_show_and_check_by_name(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = runner.invoke(
        app, ["certs", "make", "broker/broker-a/0", "admin/viewer", "--cluster", "mq", "--out", str(out)]
    )
    assert made.exit_code == 0, made.output
    folders = [str(out / "broker-broker-a-0"), str(out / "admin-viewer")]
    shown = runner.invoke(app, ["certs", "show", *folders, "-o", "json"])
    lines = json.loads(shown.output)
    assert [line["identity"] for line in lines] == [
        "spiffe://tandemmq/mq/broker/broker-a/0",
        "spiffe://tandemmq/mq/admin/viewer",
    ]
    assert all(89 < line["days_left"] <= 90 and line["uses"] and not line["problem"] for line in lines)


def test_certificates_are_not_put_beside_members_that_run_without(folder: ClusterFolder) -> None:
    record = ClusterRecord(
        "2m-2s-sync", "ready", os.getpid(), start_mark(os.getpid()) or "", ("127.0.0.1:9876",), (), ()
    )
    folder.write_record(record)
    refusal = runner.invoke(app, ["certs", "make", "--data", str(folder.root)]).exception
    assert isinstance(refusal, CommandError)
    assert "tandemmq up --secure" in refusal.remedy
    assert not folder.certs.exists()
    folder.remove_record()
    assert runner.invoke(app, ["certs", "make", "--data", str(folder.root)]).exit_code == 0
    folder.write_record(record)
    assert runner.invoke(app, ["certs", "make", "--data", str(folder.root)]).exit_code == 0


def _without_dns_names(tmp_path: Path) -> str:
    """A NameServer's certificate as a CA makes it that was told of the URI name alone."""
    runner.invoke(app, ["certs", "make", "nameserver", "--cluster", "mq", "--out", str(tmp_path)])
    authority, place = CertificateAuthority.load(tmp_path / "ca"), tmp_path / "nameserver" / "tls.crt"
    was = x509.load_pem_x509_certificate(place.read_bytes())
    uri = x509.UniformResourceIdentifier("spiffe://tandemmq/mq/nameserver")
    made = (
        x509.CertificateBuilder(was.issuer, was.subject, was.public_key(), was.serial_number)
        .not_valid_before(was.not_valid_before_utc)
        .not_valid_after(was.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    place.write_bytes(made.public_bytes(Encoding.PEM))
    return str(place.parent)


@pytest.mark.parametrize("hours", [2, 14])
def test_a_clock_that_was_set_back_leaves_certificates_that_count(folder: ClusterFolder, hours: int) -> None:
    """A machine that takes local time for UTC at its start is hours ahead of itself a minute later."""
    ClusterCertificates(folder).make(_members(folder))
    then = datetime.now(UTC) - timedelta(hours=hours)
    for each in ClusterCertificates(folder).folders():
        read_certificates(each, now=then)


def test_a_ca_of_a_later_day_is_refused_with_what_helps(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates that it issues would not count either: making them anew is no remedy."""
    ClusterCertificates(folder).make(_members(folder))
    then = datetime.now(UTC) - timedelta(days=2)
    monkeypatch.setattr("tandemmq.cli.local.certificates._now", lambda: then)
    with pytest.raises(CommandError, match="the CA cannot be used") as refused:
        ClusterCertificates(folder).make(_members(folder), all_anew=True)
    assert "not valid before" in refused.value.cause
    assert "clock" in refused.value.remedy
    assert "remove the folder" in refused.value.remedy


def test_check_tells_good_from_ending_and_from_unusable(tmp_path: Path) -> None:
    runner.invoke(app, ["certs", "make", "hook", "--out", str(tmp_path), "--days", "5"])
    hook = str(tmp_path / "hook")
    assert runner.invoke(app, ["certs", "check", hook, "--warn-days", "2"]).exit_code == 0
    assert runner.invoke(app, ["certs", "check", hook]).exit_code == 1
    # Callers would not find the server's name.
    nameless = _without_dns_names(tmp_path)
    problem = json.loads(runner.invoke(app, ["certs", "check", nameless, "-o", "json"]).output)[0]["problem"]
    assert "tls.crt lacks the DNS name mq.tandemmq" in problem
    assert runner.invoke(app, ["certs", "check", nameless]).exit_code == 2
    (tmp_path / "hook" / "tls.key").unlink()
    broken = runner.invoke(app, ["certs", "check", hook, "-o", "json"])
    assert broken.exit_code == 2
    assert "tls.key: cannot be read" in json.loads(broken.output)[0]["problem"]
    assert runner.invoke(app, ["certs", "check", "--data", str(tmp_path / "none")]).exit_code == 2


def test_names_are_what_another_ca_has_to_put_in(tmp_path: Path) -> None:
    told = runner.invoke(app, ["certs", "names", "broker/broker-a/1", "--cluster", "mq"]).output.splitlines()
    assert told == [
        "URI: spiffe://tandemmq/mq/broker/broker-a/1",
        "DNS: mq.tandemmq",
        "DNS: broker-a.mq.tandemmq",
    ]


def test_what_is_no_identity_is_refused(tmp_path: Path) -> None:
    for wrong in ("broker", "admin/root", "nobody", "broker/a/b/c"):
        refused = runner.invoke(app, ["certs", "make", wrong, "--out", str(tmp_path)])
        assert isinstance(refused.exception, CommandError)
        assert "is no identity" in str(refused.exception)
    assert not (tmp_path / "ca").exists()


@contextmanager
def _port_that_speaks_no_tls() -> Iterator[int]:
    """Answers whatever comes with a line of another protocol."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4_096)
                    connection.sendall(b"220 mail.example.org\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)


def test_a_failed_handshake_is_told_by_our_error_alone(folder: ClusterFolder) -> None:
    ClusterCertificates(folder).make(_members(folder))
    with _port_that_speaks_no_tls() as port:
        ended = run_program(
            [sys.executable, "-m", "tandemmq.cli", "status", "--namesrv", f"127.0.0.1:{port}"],
            env=os.environ | {"TANDEMMQ_SERVICE_TLS_PATH": str(folder.certs / "admin")},
        )
    assert ended.returncode != 0
    lines = ended.stderr.splitlines()
    assert lines
    assert lines[0].startswith("problem: ")
    assert not [line for line in lines if "ssl_transport_security" in line]
