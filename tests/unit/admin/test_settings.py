"""Settings of the admin service: defaults, sources, refusals."""

from __future__ import annotations

import pytest

from tandemmq.admin.settings import AdminSettings
from tandemmq.service.settings import SettingsError, effective_settings, load_settings


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
        ("viewerToken=short", "at least 16"),
        ("localRole=admin", "'viewer' or 'operator'"),
        ("anonymousRole=operator", "'none' or 'viewer'"),
        ("trustedProxies=proxy.example", "10.1.2.3/32"),
        ("trustedProxies=10.1.2.3/16", "host bits set"),
        ("proxyUserHeader=X User", "letters, digits and hyphens"),
        ("operatorGroups=messaging", "set trustedProxies"),
        ("refreshInterval=10", "refreshInterval"),
        ("httpPort=70000", "httpPort"),
    ],
)
def test_mistakes_are_named(override: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        load_settings(AdminSettings, environ={}, overrides=[override])
    assert "short" not in str(refused.value).replace("adminToken=short", "")


def test_one_token_is_not_for_looking_and_changing() -> None:
    token = "correct-horse-battery"
    with pytest.raises(SettingsError, match="could change everything") as refused:
        load_settings(AdminSettings, environ={}, overrides=[f"adminToken={token}", f"viewerToken={token}"])
    assert token not in str(refused.value)


@pytest.mark.parametrize("proxies", ["127.0.0.1/32", "10.0.0.0/8;::1/128", "0.0.0.0/0"])
def test_viewers_by_port_forward_and_a_proxy_in_the_pod_exclude_each_other(proxies: str) -> None:
    with pytest.raises(SettingsError, match="pose as any user"):
        load_settings(AdminSettings, environ={}, overrides=["localRole=viewer", f"trustedProxies={proxies}"])
