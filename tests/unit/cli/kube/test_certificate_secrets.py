"""Certificates of a release in Secrets: made once, renewed when due, by several at a time; shown to who may read."""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.certificates import TestCertificates
from support.kubernetes_release import pod
from tandemmq.cli.ending import CommandError
from tandemmq.cli.kube.certificate_secrets import CertificateSecrets
from tandemmq.cli.kube.release import ApiServerCluster, certificate_of, pod_state
from tandemmq.core.access.identity import AdminLevel, Identity, Role
from tandemmq.service import service_channels
from tandemmq.service.certificates import Certificates, judged
from tandemmq.service.kubernetes_api import AccessDenied, Document, Kind, KubernetesApi, ObjectConflict, ObjectMissing

NOW = datetime(2026, 5, 1, tzinfo=UTC)
EMPTY = tuple(f"mq-service-{end}" for end in ("ca", "nameserver", "admin", "hook", "consistency", "broker-broker-a"))
ALL = (
    Identity("mq", Role.NAME_SERVER),
    Identity("mq", Role.ADMIN, level=AdminLevel.REPAIR),
    Identity("mq", Role.HOOK),
    Identity("mq", Role.CONSISTENCY),
    Identity("mq", Role.BROKER, "broker-a"),
)


class _Secrets:
    """Secrets of one namespace, each with a version, as the API server keeps them."""

    def __init__(self, *names: str, may_create: bool = False) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self._may_create = may_create
        self._lock = threading.Lock()
        self.before_write: list[str] = []
        for name in names:
            self._store(name, {"metadata": {"name": name, "labels": {"a": "b"}}})

    @property
    def api(self) -> KubernetesApi:
        return cast(KubernetesApi, self)

    def data(self, name: str) -> dict[str, bytes]:
        data: Mapping[str, str] = self.stored[name].get("data", {})
        return {key: base64.b64decode(value) for key, value in data.items()}

    def read(self, kind: Kind, name: str) -> Document:
        assert kind is Kind.SECRET
        if name not in self.stored:
            raise ObjectMissing(f"404: secrets {name} not found")
        return self.stored[name]

    def create(self, kind: Kind, document: Document) -> Document:
        assert kind is Kind.SECRET
        if not self._may_create:
            raise AccessDenied("403: secrets is forbidden")
        return self._store(document["metadata"]["name"], document)

    def replace(self, kind: Kind, name: str, document: Document) -> Document:
        assert kind is Kind.SECRET
        with self._lock:
            if name in self.before_write:
                # Somebody else was faster.
                self.before_write.remove(name)
                other = CertificateSecrets(self.api, "mq-service", now=lambda: NOW)
                self._lock.release()
                try:
                    other.make(ALL, only_due=True, days=90)
                finally:
                    self._lock.acquire()
            if document["metadata"]["resourceVersion"] != self.stored[name]["metadata"]["resourceVersion"]:
                raise ObjectConflict("409: the object has been modified")
            return self._store(name, document)

    def _store(self, name: str, document: Mapping[str, Any]) -> Document:
        version = int(self.stored.get(name, {"metadata": {"resourceVersion": "0"}})["metadata"]["resourceVersion"])
        self.stored[name] = {**document, "metadata": {**document["metadata"], "resourceVersion": str(version + 1)}}
        return self.stored[name]


def _made(secrets: _Secrets, *, at: datetime = NOW, days: float = 90, only_due: bool = True) -> list[str]:
    return CertificateSecrets(secrets.api, "mq-service", now=lambda: at).make(ALL, only_due=only_due, days=days)


def _held(secrets: _Secrets, name: str, at: datetime = NOW) -> Certificates:
    data = secrets.data(name)
    return judged(Path(name), data["tls.crt"], data["tls.key"], data["ca.crt"], now=at)


def test_each_role_gets_its_own_by_one_authority_and_the_rest_of_the_secret_stays() -> None:
    secrets = _Secrets(*EMPTY)
    assert set(_made(secrets)) == set(EMPTY) - {"mq-service-ca"}
    assert {_held(secrets, name).identity for name in EMPTY if not name.endswith("-ca")} == set(ALL)
    assert {_held(secrets, name).authorities for name in EMPTY[1:]} == {secrets.data("mq-service-ca")["ca.crt"]}
    assert "ca.key" not in secrets.data("mq-service-admin")
    assert secrets.stored["mq-service-admin"]["metadata"]["labels"] == {"a": "b"}


@given(days=st.integers(7, 3_000), share=st.floats(0, 1.2))
def test_what_has_a_third_of_its_time_left_is_renewed_and_nothing_before(days: int, share: float) -> None:
    secrets = _Secrets(*EMPTY)
    _made(secrets, days=days)
    before = secrets.data("mq-service-ca")
    later = NOW + timedelta(days=days * share)
    made = _made(secrets, at=later, days=days)
    # Certificates begin some minutes before they are made, for clocks that differ.
    if share < 0.66:
        assert made == []
    if share > 0.67:
        assert set(made) == set(EMPTY) - {"mq-service-ca"}
        assert _held(secrets, "mq-service-hook", later).not_after > later
    assert secrets.data("mq-service-ca") == before


def test_all_of_them_are_made_anew_when_it_is_asked_for() -> None:
    secrets = _Secrets(*EMPTY)
    _made(secrets)
    first = _held(secrets, "mq-service-nameserver").serial
    assert len(_made(secrets, only_due=False)) == len(ALL)
    assert _held(secrets, "mq-service-nameserver").serial != first


@pytest.mark.parametrize("name", EMPTY)
def test_two_that_write_at_a_time_end_with_one_authority(name: str) -> None:
    secrets = _Secrets(*EMPTY)
    secrets.before_write = [name]
    _made(secrets)
    assert secrets.before_write == []
    authority = secrets.data("mq-service-ca")["ca.crt"]
    assert {_held(secrets, each).authorities for each in EMPTY[1:]} == {authority}


@pytest.mark.parametrize("what", ["tls.crt", "tls.key", "ca.crt"])
def test_what_was_damaged_is_made_anew(what: str) -> None:
    secrets = _Secrets(*EMPTY)
    _made(secrets)
    del secrets.stored["mq-service-admin"]["data"][what]
    assert _made(secrets) == ["mq-service-admin"]


def test_a_new_authority_has_all_certificates_follow() -> None:
    secrets = _Secrets(*EMPTY)
    _made(secrets)
    del secrets.stored["mq-service-ca"]["data"]
    assert len(_made(secrets)) == len(ALL)


def test_an_authority_without_its_key_is_told_and_not_replaced() -> None:
    secrets = _Secrets(*EMPTY)
    _made(secrets)
    del secrets.stored["mq-service-ca"]["data"]["ca.key"]
    before = dict(secrets.stored)
    with pytest.raises(CommandError, match="the CA cannot be used"):
        _made(secrets, only_due=False)
    assert secrets.stored == before


def test_missing_secrets_are_made_by_who_may() -> None:
    with pytest.raises(AccessDenied):
        _made(_Secrets())
    secrets = _Secrets(may_create=True)
    _made(secrets)
    assert set(secrets.stored) == set(EMPTY)


# Who comes from outside.


def _pod(mode: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "mq-nameserver-0", "labels": {"app.kubernetes.io/component": "nameserver"}},
        "spec": {
            "containers": [{"env": [{"name": "TANDEMMQ_SERVICE_TLS_MODE", "value": mode}]}],
            "volumes": [{"name": "service-tls", "secret": {"secretName": "mq-service-nameserver"}}],
        },
    }


@pytest.mark.parametrize(("mode", "secret"), [("enforcing", "mq-service-nameserver"), ("permissive", "")])
def test_a_pod_that_takes_nobody_without_tells_where_its_certificate_is(mode: str, secret: str) -> None:
    assert pod_state(_pod(mode)).certificate_secret == secret


def _cluster(secrets: _Secrets) -> ApiServerCluster:
    return ApiServerCluster(secrets.api)


SERVER = pod("mq-nameserver-0", component="nameserver", certificate_secret="mq-service-nameserver")


async def test_who_may_read_the_secret_shows_its_certificate() -> None:
    secrets = _Secrets(*EMPTY)
    CertificateSecrets(secrets.api, "mq-service", now=lambda: datetime.now(UTC)).make(ALL, only_due=True, days=90)
    async with certificate_of(_cluster(secrets), [SERVER]):
        shown = service_channels._calls()
        assert shown is not None
        folder = shown.folder
        assert folder.current().identity.level is AdminLevel.REPAIR
        assert not folder.folder.exists(), "a command that is killed leaves no key behind"
    assert service_channels._calls() is not shown
    assert not folder.folder.exists()


async def test_where_nobody_asks_for_one_no_secret_is_read() -> None:
    async with certificate_of(_cluster(_Secrets()), [pod("mq-nameserver-0", component="nameserver")]):
        assert service_channels._calls() is None


async def test_who_may_not_read_it_is_told_what_to_do() -> None:
    with pytest.raises(CommandError, match="mq-service-admin, which has one, cannot be read") as raised:
        async with certificate_of(_cluster(_Secrets()), [SERVER]):
            raise AssertionError
    assert "TANDEMMQ_SERVICE_TLS_PATH" in str(raised.value.remedy)


async def test_an_own_certificate_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = TestCertificates(tmp_path).issue(ALL[1])
    monkeypatch.setenv("TANDEMMQ_SERVICE_TLS_PATH", str(own))
    async with certificate_of(_cluster(_Secrets()), [SERVER]):
        pass
    monkeypatch.setenv("TANDEMMQ_SERVICE_TLS_PATH", "/nowhere")
    with pytest.raises(CommandError, match="TANDEMMQ_SERVICE_TLS_PATH names cannot be used"):
        async with certificate_of(_cluster(_Secrets()), [SERVER]):
            raise AssertionError


async def test_a_secret_that_is_not_filled_yet_is_told() -> None:
    with pytest.raises(CommandError, match="in Secret mq-service-admin cannot be used"):
        async with certificate_of(_cluster(_Secrets(*EMPTY)), [SERVER]):
            raise AssertionError
