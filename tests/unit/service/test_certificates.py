"""Which certificates are taken, and what is said of each that is not."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from support.certificates import ADMIN, CONSISTENCY, GROUP, TestCertificates, broker, now
from support.manual_time import ManualTime
from tandemmq.core.access.identity import AdminLevel, Identity, Role
from tandemmq.service.certificates import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    CertificateAuthority,
    CertificateFolder,
    CertificateUnusable,
    read_certificates,
    write_certificates,
)


@pytest.fixture
def certificates(tmp_path: Path) -> TestCertificates:
    return TestCertificates(tmp_path)


def _self_signed(certificates: TestCertificates) -> Path:
    itself = CertificateAuthority.new("itself", now=now(), days=3)
    folder = certificates.issue(broker(), folder="self")
    itself.save(folder / "own")
    write_certificates(
        folder,
        chain=itself.pem,
        key=(folder / "own" / "ca.key").read_bytes(),
        authorities=certificates.authority.pem,
    )
    return folder


def _not_yet(certificates: TestCertificates) -> Path:
    return certificates.issue(broker(), folder="early", at=now() + timedelta(days=1))


def _other_key(certificates: TestCertificates) -> Path:
    folder, other = certificates.issue(broker()), certificates.issue(CONSISTENCY)
    (folder / KEY_FILE).write_bytes((other / KEY_FILE).read_bytes())
    return folder


def _without(name: str) -> Callable[[TestCertificates], Path]:
    def make(certificates: TestCertificates) -> Path:
        folder = certificates.issue(broker())
        (folder / name).unlink()
        return folder

    return make


def _garbled(name: str) -> Callable[[TestCertificates], Path]:
    def make(certificates: TestCertificates) -> Path:
        folder = certificates.issue(broker())
        (folder / name).write_bytes(b"-----BEGIN NOTHING-----\n")
        return folder

    return make


def _expired_authority(certificates: TestCertificates) -> Path:
    old = CertificateAuthority.new("old CA", now=now() - timedelta(days=9), days=1)
    chain, key = old.issue(broker(), now=now() - timedelta(days=9), days=1)
    folder = certificates.root / "old"
    write_certificates(folder, chain=chain, key=key, authorities=old.pem)
    return folder


WRONG: dict[str, tuple[Callable[[TestCertificates], Path], str]] = {
    "expired": (lambda made: made.expired(broker()), "has expired at"),
    "not valid yet": (_not_yet, "is not valid before"),
    "self-signed": (_self_signed, "is self-signed"),
    "of another CA": (lambda made: made.of_another_authority(broker()), "is of another CA"),
    "with another's key": (_other_key, "is not the key of tls.crt"),
    "no certificate": (_without(CERTIFICATE_FILE), "tls.crt: cannot be read"),
    "no key": (_without(KEY_FILE), "tls.key: cannot be read"),
    "no CA": (_without(CA_FILE), "ca.crt: cannot be read"),
    "a garbled certificate": (_garbled(CERTIFICATE_FILE), "tls.crt: holds no PEM certificate"),
    "a garbled key": (_garbled(KEY_FILE), "tls.key: is no PEM key"),
    "a garbled CA": (_garbled(CA_FILE), "ca.crt: holds no PEM certificate"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_each_wrong_folder_has_its_own_message(certificates: TestCertificates, kind: str) -> None:
    make, words = WRONG[kind]
    with pytest.raises(CertificateUnusable, match=words):
        read_certificates(make(certificates), now=now())


def test_a_good_folder_says_whose_it_is_and_until_when(certificates: TestCertificates) -> None:
    found = read_certificates(certificates.issue(broker(1), days=5), now=now())
    assert found.identity == broker(1)
    assert timedelta(days=4) < found.not_after - now() < timedelta(days=6)
    assert found.server_names == ("defaultcluster.tandemmq", "broker-a.defaultcluster.tandemmq")


def test_a_certificate_that_fits_something_else_is_told_from_one_that_fits(certificates: TestCertificates) -> None:
    found = read_certificates(certificates.issue(broker(1)), now=now())
    cluster = found.identity.cluster
    assert found.misfit(Role.BROKER, cluster=cluster, group=GROUP, broker_id=1) is None
    misfits = [
        found.misfit(Role.NAME_SERVER),
        found.misfit(Role.BROKER, cluster="other", group=GROUP, broker_id=1),
        found.misfit(Role.BROKER, cluster=cluster, group="broker-b", broker_id=1),
        found.misfit(Role.BROKER, cluster=cluster, group=GROUP, broker_id=2),
    ]
    words = ("is for broker", "is of cluster", "is of broker group", "is of broker-a:1")
    for misfit, word in zip(misfits, words, strict=True):
        assert misfit is not None
        assert word in misfit


def _again(certificates: TestCertificates, identity: Identity, clock: ManualTime) -> CertificateFolder:
    folder = CertificateFolder(certificates.issue(identity, folder="mine"), clock=clock)
    clock.advance(2_000)
    return folder


def _clock() -> ManualTime:
    return ManualTime(wall_ms=int(now().timestamp() * 1_000))


def test_changed_files_are_taken_and_unchanged_ones_are_the_same_object(certificates: TestCertificates) -> None:
    clock = _clock()
    folder = _again(certificates, broker(), clock)
    first = folder.current()
    clock.advance(2_000)
    assert folder.current() is first
    certificates.issue(broker(), folder="mine")
    assert folder.current() is first, "looks once a second at most"
    clock.advance(2_000)
    assert folder.current().serial != first.serial


@pytest.mark.parametrize("kind", WRONG)
def test_a_change_that_cannot_be_used_leaves_what_was(certificates: TestCertificates, kind: str) -> None:
    clock = _clock()
    folder = _again(certificates, broker(), clock)
    first = folder.current()
    wrong = WRONG[kind][0](certificates)
    for name in (CERTIFICATE_FILE, KEY_FILE, CA_FILE):
        (folder.folder / name).unlink()
        if (wrong / name).exists():
            (folder.folder / name).write_bytes((wrong / name).read_bytes())
    clock.advance(2_000)
    assert folder.current() is first
    certificates.issue(broker(), folder="mine")
    clock.advance(2_000)
    assert folder.current().serial != first.serial


def test_another_bearers_certificate_is_not_taken(certificates: TestCertificates) -> None:
    clock = _clock()
    folder = _again(certificates, broker(), clock)
    first = folder.current()
    certificates.issue(ADMIN[AdminLevel.REPAIR], folder="mine")
    clock.advance(2_000)
    assert folder.current() is first


def test_a_ca_is_saved_and_loaded_and_its_key_is_for_its_owner_only(tmp_path: Path) -> None:
    made = CertificateAuthority.new("CA", now=now(), days=1)
    made.save(tmp_path / "ca")
    assert CertificateAuthority.load(tmp_path / "ca").pem == made.pem
    assert (tmp_path / "ca" / "ca.key").stat().st_mode & 0o077 == 0
    CertificateAuthority.new("other", now=now(), days=1).save(tmp_path / "other")
    (tmp_path / "ca" / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(CertificateUnusable, match="is not the key of"):
        CertificateAuthority.load(tmp_path / "ca")
