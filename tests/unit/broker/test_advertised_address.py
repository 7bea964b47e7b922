from __future__ import annotations

from collections.abc import Sequence

import pytest

from support.manual_time import ManualTime
from tandemmq.broker.advertised_address import AddressUnusable, loopback_problems, resolve_advertised
from tandemmq.broker.settings import BrokerSettings

NAMES = {
    "pod-0": ["10.0.0.5"],
    "this-host": ["127.0.1.1"],
    "both": ["127.0.0.1", "10.0.0.6"],
    "mq-nameserver": ["10.0.0.2"],
    "local-namesrv": ["127.0.0.1"],
}


def settings(host: str, *, name_servers: str = "mq-nameserver:9876", **more: str) -> BrokerSettings:
    return BrokerSettings.model_validate({"brokerIP1": host, "namesrvAddr": name_servers, **more})


async def resolve(host: str) -> Sequence[str]:
    if host in NAMES:
        return NAMES[host]
    if host.replace(".", "").isdigit() or ":" in host:
        return [host]
    raise OSError(-2, "Name or service not known")


async def advertised(wanted: BrokerSettings) -> str:
    host = await resolve_advertised(wanted, clock=ManualTime(), resolve=resolve)
    return str(host).rpartition(":")[0]


async def test_name_becomes_the_address_in_records() -> None:
    assert await advertised(settings("pod-0")) == "10.0.0.5"


async def test_of_several_addresses_one_that_others_can_use_is_taken() -> None:
    assert await advertised(settings("both")) == "10.0.0.6"


@pytest.mark.parametrize("name_servers", ["", "127.0.0.1:9876", "localhost:9876", "local-namesrv:9876", "[::1]:9876"])
async def test_loopback_is_fine_when_every_name_server_is_here(name_servers: str) -> None:
    wanted = settings("127.0.0.1", name_servers=name_servers)
    assert loopback_problems(wanted) == []
    assert await advertised(wanted) == "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"])
def test_loopback_beside_a_foreign_name_server_is_refused_without_dns(host: str) -> None:
    (problem,) = loopback_problems(settings(host, name_servers="127.0.0.1:9876;192.0.2.7:9876"))
    assert problem.startswith(f"brokerIP1={host}:")
    assert "192.0.2.7:9876" in problem
    assert "set it to a name or address" in problem


def test_broker_ip2_is_judged_too() -> None:
    (problem,) = loopback_problems(settings("192.0.2.9", name_servers="192.0.2.7:9876", brokerIP2="127.0.0.1"))
    assert problem.startswith("brokerIP2=127.0.0.1:")


@pytest.mark.parametrize(
    "name_servers", ["mq-nameserver:9876", "not-there-yet:9876", "local-namesrv:1;mq-nameserver:1"]
)
async def test_name_that_stands_for_loopback_is_refused_in_a_cluster(name_servers: str) -> None:
    with pytest.raises(AddressUnusable, match=r"brokerIP1=this-host: stands for 127\.0\.1\.1, which is loopback"):
        await advertised(settings("this-host", name_servers=name_servers))


async def test_name_that_resolves_later_is_waited_for() -> None:
    time = ManualTime()

    async def resolve_later(host: str) -> Sequence[str]:
        if time.monotonic_ms() < 20_000:
            raise OSError(-3, "Temporary failure in name resolution")
        return ["10.0.0.7"]

    async def sleep(seconds: float) -> None:
        time.advance(round(seconds * 1_000))

    host = await resolve_advertised(settings("late"), clock=time, resolve=resolve_later, sleep=sleep)
    assert str(host) == "10.0.0.7:10911"


async def test_name_that_never_resolves_ends_the_start() -> None:
    time = ManualTime()

    async def sleep(seconds: float) -> None:
        time.advance(round(seconds * 1_000))

    with pytest.raises(AddressUnusable, match=r"brokerIP1=never: does not resolve .*addressResolveTimeout=60000 ms"):
        await resolve_advertised(settings("never"), clock=time, resolve=resolve, sleep=sleep)
    assert time.monotonic_ms() == 60_000
