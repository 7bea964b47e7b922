"""Users, policies, clocks and masters change in any order while clients call: each answer is what the rule says.

The rule is stated below as an operator would say it, of plain dictionaries and without what the guard remembers. A
master and a slave that follows it are asked alike; the slave knows what it was told last, and may be master next.
"""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from support.fake_call import FakeCall
from support.guarded_api import UNAUTHORIZED, WANTED, GuardedBroker, consumer_settings, producer_settings, request_of
from tandemmq.core.access.signature import DATE_WINDOW_MS, sign
from tandemmq.core.access.users_and_policies import (
    Decision,
    PolicyEntry,
    PolicyType,
    Resource,
    UserStatus,
    UserType,
    actions_of,
    source_ips_of,
)
from tandemmq.core.metadata.metadata_store import MetadataFile

USERS = ["ann", "bob"]
SECRETS = ["a first secret", "a second one"]
TOPICS = ["orders", "orders-1", "later"]
GROUPS = ["orders", "others"]
RESOURCES = ["*", "Topic:orders", "Topic:orders*", "Topic:later", "Topic:*", "Group:orders", "Group:*", "*"]
ACTIONS = ["Pub", "Sub", "Get", "Update", "All"]
NETWORKS = ["", "", "10.0.0.0/24", "10.0.0.7", "::/0"]
HOSTS = ["10.0.0.7", "10.0.1.7", "fd00::7"]
# Methods that answer at once, or else hold a refusal back.
METHODS = sorted(set(WANTED) - {"ReceiveMessage", "PullMessage"})
FORGET_MS = 60_000
"""For so long a signature may count whose date has just become too old."""


@dataclass
class _Told:
    """What operators have said."""

    users: dict[str, dict[str, str]] = field(default_factory=dict)
    # By user, then by type and resource: actions, networks, decision.
    policies: dict[str, dict[tuple[str, str], tuple[set[str], str, str]]] = field(default_factory=dict)

    def allows(self, user: str, kind: str, name: str, wanted: set[str], host: str) -> bool:
        """One of the wanted actions is allowed, and that one not denied."""
        if self.users[user]["type"] == "Super":
            return True
        return any(self._allows(user, kind, name, action, host) for action in wanted)

    def _allows(self, user: str, kind: str, name: str, action: str, host: str) -> bool:
        said: dict[str, set[str]] = {"Custom": set(), "Default": set()}
        for (policy_type, resource), (actions, network, decision) in self.policies.get(user, {}).items():
            own_kind, _, pattern = resource.partition(":")
            is_it = resource == "*" or (
                own_kind == kind and (name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern)
            )
            if not is_it or not actions & {action, "All"} or not _is_from(host, network, decision):
                continue
            said[policy_type].add(decision)
        return (said["Custom"] or said["Default"]) == {"Allow"}


def _is_from(host: str, network: str, decision: str) -> bool:
    if not network:
        return True
    address, wanted = ip_address(host), ip_network(network)
    # Who denies every address of IPv6 denies those of IPv4, which are among them.
    return address in wanted or (network == "::/0" and decision == "Deny")


@dataclass
class _Signature:
    user: str
    secret: str
    date_ms: int
    headers: dict[str, str]


@dataclass
class _Stream:
    call: FakeCall
    user: str
    secret: str
    needs: list[tuple[str, str, set[str]]]
    host: str
    is_open: bool = True


class _Member:
    """A broker, and what it was told."""

    def __init__(self) -> None:
        self.broker = GuardedBroker()
        self.broker.changes.delete_user("ann")
        self.broker.time.end_turn()
        self.told = _Told()
        self.streams: list[_Stream] = []
        self.good_at_ms: dict[str, int] = {}
        """When a signature, by its text, was found good, on the monotonic clock."""

    def follow(self, master: _Member) -> None:
        theirs, ours = master.broker.tables, self.broker.tables
        for file, table, copy in (
            (MetadataFile.USERS, theirs.users, ours.users),
            (MetadataFile.ACLS, theirs.acls, ours.acls),
        ):
            if table.version != copy.version:
                ours.applied_from_master(file, copy.apply_from_master(table.to_json(), table.version))
        self.told = deepcopy(master.told)
        self.settle()

    def settle(self) -> None:
        """What is open is as the rule has it, once a turn of the loop is over."""
        self.broker.time.end_turn()
        for stream in self.streams:
            user = self.told.users.get(stream.user)
            may = user is not None and user["status"] == "enable" and user["secret"] == stream.secret
            may = may and all(self.told.allows(stream.user, *need, stream.host) for need in stream.needs)
            stream.is_open &= may
            assert (stream.call.code is None) is stream.is_open, (stream, self.told)


class _History:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.members = [_Member(), _Member()]
        self.signatures: list[_Signature] = []
        self.seen: Counter[str] = Counter()
        for _ in range(10):
            self._put_user()
            self._put_policy()
        self._follow()

    def step(self) -> None:
        getattr(self, "_" + self.chance.choice(_STEPS))()
        master, slave = self.members
        master.settle()
        slave.settle()

    # Operators

    def _put_user(self) -> None:
        user, secret = self.chance.choice(USERS), self.chance.choice(["", *SECRETS])
        kind = self.chance.choice(["", *["Normal"] * 6, "Super"])
        status = self.chance.choice(["", *["enable"] * 4, "disable"])
        master = self.members[0]
        known = master.told.users.get(user)
        if known is None and not secret:
            return
        master.broker.changes.put_user(
            user,
            secret=secret,
            user_type=UserType(kind) if kind else None,
            status=UserStatus(status) if status else None,
        )
        entry = master.told.users.setdefault(user, {"type": "Normal", "status": "enable", "secret": secret})
        entry.update({key: value for key, value in (("type", kind), ("status", status), ("secret", secret)) if value})

    def _delete_user(self) -> None:
        user, master = self.chance.choice(USERS), self.members[0]
        master.broker.changes.delete_user(user)
        master.told.users.pop(user, None)
        master.told.policies.pop(user, None)

    def _put_policy(self) -> None:
        user, master = self.chance.choice(USERS), self.members[0]
        if user not in master.told.users:
            return
        resource, network = self.chance.choice(RESOURCES), self.chance.choice(NETWORKS)
        actions = set(self.chance.sample(ACTIONS, self.chance.randint(1, 2)))
        decision = self.chance.choice([*["Allow"] * 4, "Deny"])
        kind = self.chance.choice(["Custom", "Custom", "Default"])
        entry = PolicyEntry(
            Resource.parse(resource),
            actions_of(",".join(actions)),
            Decision(decision),
            source_ips_of(network),
            PolicyType(kind),
        )
        master.broker.changes.put_entries(f"User:{user}", [entry])
        master.told.policies.setdefault(user, {})[kind, resource] = actions, network, decision

    def _delete_policy(self) -> None:
        user, master = self.chance.choice(USERS), self.members[0]
        said = master.told.policies.get(user)
        if said:
            kind, resource = self.chance.choice(sorted(said))
            master.broker.changes.delete_entries(f"User:{user}", [Resource.parse(resource)], PolicyType(kind))
            del said[kind, resource]

    def _make_topic(self) -> None:
        """Policies of it were there before."""
        for member in self.members:
            member.broker.broker.add_topic("later")

    # The cluster

    def _follow(self) -> None:
        self.members[1].follow(self.members[0])

    def _change_master(self) -> None:
        """What the slave was not told is lost with its master, which follows the new one."""
        lost, new = self.members
        self.members = [new, _Member()]
        _set_time(self.members[1].broker, lost.broker.time.monotonic_ms(), lost.broker.time.wall_ms())
        self._follow()

    def _wait(self) -> None:
        for_ms = self.chance.choice([0, 1_000, 61_000, DATE_WINDOW_MS - 30_000, DATE_WINDOW_MS + 61_000])
        for member in self.members:
            member.broker.time.advance(for_ms)

    def _set_clock(self) -> None:
        """Of one server, which was wrong or is now."""
        member = self.chance.choice(self.members)
        right_ms = GuardedBroker().time.wall_ms() + member.broker.time.monotonic_ms()
        off_ms = self.chance.choice([-20, -10, 0, 0, 0, 10, 20]) * 60_000
        _set_time(member.broker, member.broker.time.monotonic_ms(), right_ms + off_ms)

    # Clients

    def _sign(self) -> _Signature:
        broker = self.members[0].broker
        user = self.chance.choice([*USERS * 4, "eve"])
        known = self.members[0].told.users.get(user)
        secret = known["secret"] if known is not None and self.chance.random() < 0.85 else self.chance.choice(SECRETS)
        off_ms = self.chance.choice([*[0] * 8, -10, 10, -20, 20]) * 60_000
        date_ms = (broker.time.wall_ms() + off_ms) // 1_000 * 1_000
        date = datetime.fromtimestamp(date_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        signature = sign(secret.encode(), date).hex()
        text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
        headers = {"x-mq-client-id": "client@1", "authorization": text, "x-mq-date-time": date}
        self.signatures.append(_Signature(user, secret, date_ms, headers))
        return self.signatures[-1]

    def _call(self) -> None:
        """With a signature of now, or one of before, whoever has it."""
        fresh = not self.signatures or self.chance.random() < 0.5
        signature = self._sign() if fresh else self.chance.choice(self.signatures)
        method, host = self.chance.choice(METHODS), self.chance.choice(HOSTS)
        topic, group = self.chance.choice(TOPICS), self.chance.choice(GROUPS)
        peer = f"ipv6:[{host}]:{self._port()}" if ":" in host else f"ipv4:{host}:{self._port()}"
        for member in self.members:
            fake = member.broker.call(method, request_of(method, topic, group), signature.headers, peer=peer)
            member.broker.time.end_turn()  # Acknowledgements are answered then.
            answer: Any = fake.sent[0] if fake.sent else None
            told = "refused" if answer is None or answer.status.code == UNAUTHORIZED else "allowed"
            known = self._is_known(member, signature)
            topics, groups = WANTED[method]
            needs = [("Topic", topic, topics)] * bool(topics) + [("Group", group, groups)] * bool(groups)
            if known is None:  # Too old, and found good a moment ago.
                continue
            may = known and all(member.told.allows(signature.user, *need, host) for need in needs)
            assert told == ("allowed" if may else "refused"), (method, topic, group, host, signature, member.told)
            self.seen[told] += 1

    def _open_stream(self) -> None:
        member, signature, host = self.chance.choice(self.members), self._sign(), self.chance.choice(HOSTS)
        fake = FakeCall(metadata=signature.headers, peer=f"ipv6:[{host}]:1" if ":" in host else f"ipv4:{host}:1")
        handler: Any = member.broker.methods["Telemetry"].handler
        stream = handler(fake)
        known = self._is_known(member, signature)
        if not known:
            member.broker.time.advance(2_000)
            assert known is None or fake.code is not None
            return
        assert fake.code is None
        topic, group = self.chance.choice(TOPICS), self.chance.choice(GROUPS)
        if self.chance.random() < 0.5:
            needs, settings = [("Topic", topic, {"Pub"})], producer_settings(topic)
        else:
            needs = [("Group", group, {"Sub"}), ("Topic", topic, {"Sub"})]
            settings = consumer_settings(group, topic)
        stream.message(settings)
        if not all(member.told.allows(signature.user, *need, host) for need in needs):
            needs = []  # Answered and not taken.
        member.streams.append(_Stream(fake, signature.user, signature.secret, needs, host))
        self.seen["stream"] += 1

    def _port(self) -> int:
        return self.chance.randint(1_024, 60_000)

    def _is_known(self, member: _Member, signature: _Signature) -> bool | None:
        """Whether it counts there; None: it did until now."""
        user, time = member.told.users.get(signature.user), member.broker.time
        if user is None or user["status"] == "disable" or user["secret"] != signature.secret:
            return False
        text = signature.headers["authorization"]
        if abs(signature.date_ms - time.wall_ms()) <= DATE_WINDOW_MS:
            member.good_at_ms[text] = time.monotonic_ms()
            return True
        good_at_ms = member.good_at_ms.get(text)
        return None if good_at_ms is not None and time.monotonic_ms() - good_at_ms <= FORGET_MS else False


_STEPS = [
    *["call"] * 24,
    *["put_user"] * 2,
    *["put_policy", "open_stream", "follow"] * 4,
    *["delete_user", "delete_policy", "make_topic", "change_master", "wait", "set_clock"],
]


def _set_time(broker: GuardedBroker, monotonic_ms: int, wall_ms: int) -> None:
    if monotonic_ms > broker.time.monotonic_ms():
        broker.time.advance(monotonic_ms - broker.time.monotonic_ms())
    broker.time._wall_at_start_ms = wall_ms - broker.time.monotonic_ms()


@pytest.mark.parametrize("seed", range(12))
def test_each_answer_is_what_operators_have_said_at_that_moment(seed: int) -> None:
    history = _History(seed)
    for _ in range(120):
        history.step()
    assert all(history.seen[what] for what in ("refused", "allowed", "stream")), history.seen
