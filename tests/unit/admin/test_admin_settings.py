"""Settings of the admin service: defaults, sources, refusals."""

from __future__ import annotations

import pytest

from admin.settings import AdminSettings
from mqservice.settings import SettingsError, effective_settings, load_settings


def test_defaults_are_local_and_closed() -> None:
    settings = load_settings(AdminSettings, environ={})
    assert (settings.bind_address, settings.http_port, settings.kubernetes_role_labels) == ("127.0.0.1", 8_080, False)
    assert settings.name_servers == ("127.0.0.1:9876",)


def test_pod_environment_is_read_and_the_token_is_never_shown() -> None:
    settings = load_settings(
        AdminSettings,
        environ={
            "TANDEMMQ_NAMESRV_ADDR": "mq-nameserver-0.mq-nameserver:9876;mq-nameserver-1.mq-nameserver:9876",
            "TANDEMMQ_BIND_ADDRESS": "0.0.0.0",
            "TANDEMMQ_ADMIN_TOKEN": "correct-horse-battery",
            "TANDEMMQ_KUBERNETES_ROLE_LABELS": "true",
            "TANDEMMQ_KUBERNETES_INSTANCE": "mq",
        },
    )
    assert len(settings.name_servers) == 2
    assert settings.kubernetes_role_labels
    assert settings.admin_token.get_secret_value() == "correct-horse-battery"
    assert "correct-horse" not in str(effective_settings(settings))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("namesrvAddr=", "name at least one NameServer"),
        ("consistencyResults=s3://bucket/results", "an object store is not read"),
        ("consistencyResults=configmap:No_Name", "the ConfigMap's name"),
        ("namesrvAddr=nameserver", "is no host:port"),
        ("adminToken=short", "at least 16"),
        ("adminToken=with spaces in between it", "without spaces"),
        ("refreshInterval=10", "refreshInterval"),
        ("httpPort=70000", "httpPort"),
    ],
)
def test_mistakes_are_named(override: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        load_settings(AdminSettings, environ={}, overrides=[override])
    assert "short" not in str(refused.value).replace("adminToken=short", "")
