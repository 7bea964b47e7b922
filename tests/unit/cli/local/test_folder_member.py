from __future__ import annotations

from dataclasses import replace

import pytest

from tandemmq.cli.local.folder import Member, member_environment, member_problems, parse_properties, preset_files

_MEMBERS = {
    name: Member(name=name, settings=parse_properties(text)) for name, text in preset_files("2m-2s-sync").items()
}


def _problems_with(name: str, **changes: str) -> list[str]:
    changed = replace(_MEMBERS[name], settings={**_MEMBERS[name].settings, **changes})
    return member_problems(list((_MEMBERS | {name: changed}).values()))


def test_port_used_twice_names_both_owners() -> None:
    assert _problems_with("broker-b", listenPort="10911") == [
        "broker-b: listenPort: port 10911 is taken by broker-a (listenPort); give each plane a port of its own"
    ]


def test_port_that_is_not_stated_is_a_problem() -> None:
    settings = {key: value for key, value in _MEMBERS["broker-a"].settings.items() if key != "haListenPort"}
    changed = replace(_MEMBERS["broker-a"], settings=settings)
    problems = member_problems(list((_MEMBERS | {"broker-a": changed}).values()))
    assert problems == ["broker-a: haListenPort: not stated; write haListenPort=<port> into conf/broker-a.properties"]


def test_broker_that_would_register_elsewhere_is_a_problem() -> None:
    assert _problems_with("broker-a-s", namesrvAddr="127.0.0.1:9876") == [
        "broker-a-s: namesrvAddr: names not this cluster's NameServers; set namesrvAddr=127.0.0.1:9876;127.0.0.1:9877"
    ]


def test_two_brokers_of_one_identity_and_store_are_two_problems() -> None:
    problems = _problems_with("broker-b", brokerName="broker-a", storePathRootDir="store/broker-a")
    assert [problem.split(":")[1].strip() for problem in problems] == ["storePathRootDir", "brokerName and brokerId"]


def test_member_bound_to_any_address_is_reached_on_loopback() -> None:
    anywhere = replace(_MEMBERS["broker-a"], settings={**_MEMBERS["broker-a"].settings, "bindAddress": "0.0.0.0"})
    assert anywhere.health_address == "127.0.0.1:10911"


def test_settings_in_our_environment_do_not_reach_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMMQ_LISTEN_PORT", "1")
    monkeypatch.setenv("KEPT", "yes")
    environment = member_environment()
    assert "TANDEMMQ_LISTEN_PORT" not in environment
    assert environment["KEPT"] == "yes"
