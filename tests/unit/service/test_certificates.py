"""Which certificates are taken, and what is said of each that is not."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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
    names_of,
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
    return certificates.issue(broker(), folder="early", at=now() + timedelta(days=2))


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


def _made(
    certificates: TestCertificates, folder: str, change: Callable[[x509.CertificateBuilder], x509.CertificateBuilder]
) -> Path:
    """A broker's certificate of our CA that somebody else made."""
    place = certificates.issue(broker(), folder=folder)
    was = x509.load_pem_x509_certificate((place / CERTIFICATE_FILE).read_bytes())
    builder = (
        x509.CertificateBuilder()
        .subject_name(was.subject)
        .issuer_name(was.issuer)
        .public_key(was.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(was.not_valid_before_utc)
        .not_valid_after(was.not_valid_after_utc)
    )
    made = change(builder).sign(certificates.authority.key, hashes.SHA256())
    (place / CERTIFICATE_FILE).write_bytes(made.public_bytes(Encoding.PEM))
    return place


def _named(*dns: str) -> Callable[[x509.CertificateBuilder], x509.CertificateBuilder]:
    names = [x509.UniformResourceIdentifier(str(broker())), *map(x509.DNSName, dns)]
    return lambda builder: builder.add_extension(x509.SubjectAlternativeName(names), critical=False)


SERVER_NAMES = names_of(broker()).dns


def _without_group_name(certificates: TestCertificates) -> Path:
    return _made(certificates, "nameless", _named(SERVER_NAMES[0]))


def _for_servers_alone(certificates: TestCertificates) -> Path:
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return _made(
        certificates, "server", lambda builder: _named(*SERVER_NAMES)(builder).add_extension(uses, critical=False)
    )


def _between_expired(certificates: TestCertificates) -> Path:
    folder, then = certificates.root / "between", now() - timedelta(days=9)
    old = CertificateAuthority.new("between", now=then, days=1)
    chain, key = CertificateAuthority(old.key, old.certificate).issue(broker(), now=then, days=1)
    leaf = x509.load_pem_x509_certificate(chain)
    long = (
        x509.CertificateBuilder()
        .subject_name(leaf.subject)
        .issuer_name(old.certificate.subject)
        .public_key(leaf.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(then)
        .not_valid_after(now() + timedelta(days=9))
        .add_extension(leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value, critical=False)
        .sign(old.key, hashes.SHA256())
    )
    above = (
        x509.CertificateBuilder()
        .subject_name(old.certificate.subject)
        .issuer_name(certificates.authority.certificate.subject)
        .public_key(old.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(then)
        .not_valid_after(now() - timedelta(days=1))
        .sign(certificates.authority.key, hashes.SHA256())
    )
    pem = long.public_bytes(Encoding.PEM) + above.public_bytes(Encoding.PEM)
    write_certificates(folder, chain=pem, key=key, authorities=certificates.authority.pem)
    return folder


def _by(is_ca: bool, *, days: float = 9) -> Callable[[TestCertificates], Path]:
    """Issued by somebody whom our CA has issued a certificate, in a chain with it."""

    def make(certificates: TestCertificates) -> Path:
        ours = certificates.authority
        between = CertificateAuthority.new("between", now=now(), days=20)
        above = (
            x509.CertificateBuilder()
            .subject_name(between.certificate.subject)
            .issuer_name(ours.certificate.subject)
            .public_key(between.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() - timedelta(days=1))
            .not_valid_after(now() + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .sign(ours.key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )
        place = certificates.issue(broker(), folder="by-another", by=between)
        (place / CERTIFICATE_FILE).write_bytes((place / CERTIFICATE_FILE).read_bytes() + above)
        return place

    return make


def _by_a_root_of_any_depth(certificates: TestCertificates, days: float) -> Path:
    """With one between, and a CA that may have such."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "deep CA")])
    root = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - timedelta(days=1))
        .not_valid_after(now() + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificates.authority = CertificateAuthority(key, root)
    return _by(True, days=days)(certificates)


WRONG: dict[str, tuple[Callable[[TestCertificates], Path], str]] = {
    "expired": (lambda made: made.expired(broker()), "has expired at"),
    "not valid yet": (_not_yet, "is not valid before"),
    "self-signed": (_self_signed, "is self-signed"),
    "of another CA": (lambda made: made.of_another_authority(broker()), "is of another CA"),
    "for servers alone": (_for_servers_alone, "is not for client auth"),
    "by one that has expired": (_between_expired, "has expired at"),
    "by a member": (_by(False), "issued the certificate, and is no CA"),
    "by one too many": (_by(True), "may have 0 CAs below it, and there are 1"),
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


def test_a_chain_holds_until_the_first_of_it_ends(certificates: TestCertificates) -> None:
    """Monitoring that looks at the certificate alone hears of the CA's end from the cluster."""
    found = read_certificates(_by_a_root_of_any_depth(certificates, 3), now=now())
    assert timedelta(days=2.9) < found.not_after - now() < timedelta(days=3.1)


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


@pytest.mark.parametrize(
    ("dns", "lacks"),
    [
        (SERVER_NAMES, None),
        (("*.tandemmq", SERVER_NAMES[1]), None),
        ((SERVER_NAMES[0].upper(), SERVER_NAMES[1]), None),
        (SERVER_NAMES[1:], SERVER_NAMES[0]),
        ((), SERVER_NAMES[0]),
    ],
)
def test_a_server_needs_the_name_that_callers_ask_for(
    certificates: TestCertificates, dns: tuple[str, ...], lacks: str | None
) -> None:
    misfit = read_certificates(_made(certificates, "made", _named(*dns)), now=now()).misfit(Role.BROKER)
    assert misfit is None if lacks is None else misfit is not None and lacks in misfit


@pytest.mark.parametrize("is_new_first", [False, True])
def test_a_ca_that_was_renewed_with_its_key_does_while_the_old_one_is_still_there(
    certificates: TestCertificates, is_new_first: bool
) -> None:
    ours = certificates.authority.certificate
    old = (
        x509.CertificateBuilder()
        .subject_name(ours.subject)
        .issuer_name(ours.issuer)
        .public_key(certificates.authority.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - timedelta(days=9))
        .not_valid_after(now() - timedelta(days=1))
        .sign(certificates.authority.key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    both = certificates.authority.pem + old if is_new_first else old + certificates.authority.pem
    found = read_certificates(certificates.issue(broker(), believes=both), now=now())
    # The library takes the first of them that fits, and finds then that it has expired.
    assert found.authorities == certificates.authority.pem + old
    with pytest.raises(CertificateUnusable, match=r"the CA .* has expired at"):
        read_certificates(certificates.issue(broker(), believes=old), now=now())


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


@pytest.mark.parametrize("kind", [*WRONG, "without its group's name"])
def test_a_change_that_cannot_be_used_leaves_what_was(certificates: TestCertificates, kind: str) -> None:
    clock = _clock()
    folder = _again(certificates, broker(), clock)
    first = folder.current()
    wrong = WRONG[kind][0](certificates) if kind in WRONG else _without_group_name(certificates)
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


def test_what_a_killed_process_left_of_a_key_is_cleared_away(tmp_path: Path) -> None:
    """Not what another process is writing now."""
    old, new = tmp_path / ".tls.key-abcdefgh", tmp_path / ".tls.key-ijklmnop"
    for left in (old, new):
        left.write_text("key")
    os.utime(old, (0, 0))
    write_certificates(tmp_path, chain=b"c", key=b"k", authorities=b"a")
    assert not old.exists()
    assert new.exists()
    assert (tmp_path / "tls.key").stat().st_mode & 0o777 == 0o600
