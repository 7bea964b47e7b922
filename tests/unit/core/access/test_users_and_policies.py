"""Users and policies: what they may be, what they allow, and that no copy of a table loses or widens one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cmp_to_key
from ipaddress import ip_address
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.core.access.users_and_policies import (
    Acl,
    AclTable,
    Action,
    Decision,
    InvalidAcl,
    InvalidUser,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceKind,
    User,
    UserStatus,
    UserTable,
    UserType,
    actions_of,
    check_said,
    decide,
    parse_address,
    source_ips_in,
    source_ips_of,
    topic_or_group,
    user_of_subject,
)
from tandemmq.core.metadata.metadata_store import MetadataCorrupt

TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP
HERE = parse_address("10.1.2.3")


def entry(
    resource: str,
    actions: str = "Pub",
    decision: Decision = Decision.ALLOW,
    ips: str = "",
    policy_type: PolicyType = PolicyType.CUSTOM,
) -> PolicyEntry:
    return PolicyEntry(Resource.parse(resource), actions_of(actions), decision, source_ips_of(ips), policy_type, 7)


def acl(*entries: PolicyEntry) -> Acl:
    return Acl("User:ann", entries)


def may(policies: Acl | None, name: str = "orders", action: Action = Action.PUB, address: str = "10.1.2.3") -> bool:
    return decide(policies, TOPIC, name, (action,), parse_address(address)).is_allowed


def test_what_no_policy_allows_is_denied() -> None:
    assert not may(None)
    assert not may(acl(entry("Topic:bills")))
    assert not may(acl(entry("Group:orders")))
    assert not may(acl(entry("Topic:orders", "Sub")))


@pytest.mark.parametrize("resource", ["Topic:orders", "topic:ord*", "Topic:*", "*"])
def test_a_pattern_covers_what_it_names(resource: str) -> None:
    assert may(acl(entry(resource)))
    assert may(acl(entry(resource, "All")))


def test_deny_wins_over_any_allow() -> None:
    denied = entry("Topic:*", "All", Decision.DENY)
    assert not may(acl(entry("Topic:orders"), denied))
    assert not may(acl(denied, entry("Topic:orders")))


def test_default_entries_count_where_no_custom_one_matches() -> None:
    default = entry("*", "All", policy_type=PolicyType.DEFAULT)
    assert may(acl(default))
    assert not may(acl(default, entry("Topic:orders", "Pub", Decision.DENY)))
    assert may(acl(default, entry("Topic:orders", "Pub", Decision.DENY)), "bills")
    refusing = entry("*", "All", Decision.DENY, policy_type=PolicyType.DEFAULT)
    assert may(acl(refusing, entry("Topic:orders")))


def test_source_addresses_are_addresses_or_networks() -> None:
    policies = acl(entry("Topic:orders", ips="10.1.0.0/16, 192.168.7.7,fd00::/8"))
    assert may(policies, address="10.1.9.9")
    assert may(policies, address="192.168.7.7")
    assert may(policies, address="::ffff:10.1.9.9"), "IPv4 that is written as IPv6"
    assert may(policies, address="fd00::1")
    assert not may(policies, address="10.2.0.1")


@pytest.mark.parametrize("ips", ["::ffff:10.1.0.0/112", "::ffff:10.1.9.9", "::ffff:0:0/96"])
def test_ipv4_that_a_policy_writes_as_ipv6_is_ipv4(ips: str) -> None:
    assert may(acl(entry("Topic:orders", ips=ips)), address="10.1.9.9")
    assert not may(acl(entry("*"), entry("Topic:orders", "Pub", Decision.DENY, ips=ips)), address="10.1.9.9")
    assert not may(acl(entry("Topic:orders", ips="::ffff:10.1.0.0/112")), address="10.2.9.9")


def test_who_denies_all_of_ipv6_denies_ipv4_as_it_is_written_there() -> None:
    everybody = entry("Topic:orders", "Pub", Decision.DENY, ips="::/0")
    assert not may(acl(entry("*"), everybody), address="10.1.9.9")
    assert not may(acl(entry("*"), everybody), address="::ffff:10.1.9.9")
    assert not may(acl(entry("*"), everybody), address="fd00::1")
    assert may(acl(entry("*"), replace(everybody, source_ips=("fd00::/8",))), address="10.1.9.9")
    assert not may(acl(entry("Topic:orders", ips="::/0")), address="10.1.9.9"), "an Allow says what it means"


def test_an_unknown_address_is_allowed_nothing_that_depends_on_it_and_denied_all() -> None:
    assert not may(acl(entry("Topic:orders", ips="10.1.0.0/16")), address="unix")
    assert not may(acl(entry("Topic:orders"), entry("Topic:ord*", "Pub", Decision.DENY, ips="9.9.9.9")), address="unix")


def test_any_of_several_actions_is_enough() -> None:
    assert decide(acl(entry("Topic:orders", "Sub")), TOPIC, "orders", (Action.PUB, Action.SUB), HERE).is_allowed


def test_a_retry_topic_is_its_group() -> None:
    assert topic_or_group("%RETRY%billing") == (GROUP, "billing")
    assert topic_or_group("%DLQ%billing") == (TOPIC, "%DLQ%billing")


@pytest.mark.parametrize(
    "text",
    ["", "Topic", "Topic:", "Any:x", "Queue:x", "Topic:a*b", "Topic:a,b", "Topic:a b", "orders", "Topic:" + "x" * 256],
)
def test_what_is_no_resource_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(InvalidAcl, match="resource:"):
        Resource.parse(text)


@pytest.mark.parametrize(
    ("read", "field"),
    [
        (lambda: actions_of("Pub,Fly"), "actions"),
        (lambda: source_ips_of("10.0.0.0/33"), "sourceIp"),
        (lambda: user_of_subject("ann"), "subject"),
        (lambda: user_of_subject("User:"), "subject"),
        (lambda: acl().check(), "entries"),
        (lambda: acl(entry("*", "")).check(), "actions"),
        (lambda: source_ips_in([""]), "sourceIp"),
        (lambda: source_ips_in(["10.0.0.1", " "]), "sourceIp"),
        (lambda: source_ips_in(["10.0.0.1,"]), "sourceIp"),
        # It would never count: of a retry topic the group is asked for.
        (lambda: check_said("User:ann", [entry("Topic:%RETRY%billing", "Sub", Decision.DENY)]), "name Group:billing"),
        (lambda: check_said("User:ann", [entry("Topic:%RETRY%*")]), r"name Group:\*"),
        (
            lambda: check_said("User:ann", [entry("Topic:ord\u0435rs", decision=Decision.DENY)]),
            r"ord\\u0435rs.*no topic has",
        ),
        (lambda: check_said("User:ann", [entry("Topic:orders.*", decision=Decision.DENY)]), "no topic has such a name"),
        (lambda: check_said("User:ann", [entry("Group:b\u00fcro*")]), "no group has such a name"),
        (lambda: check_said("User:ann", []), "entries"),
        (lambda: check_said("User:ann", [entry("*", decision=Decision.DENY), entry("*")]), "has two entries"),
        (lambda: check_said("User:ann", [entry("Topic:a"), entry("Topic:b"), entry("Topic:a", "Sub")]), "Topic:a has"),
    ],
)
def test_bad_input_is_named(read, field: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidAcl, match=field):
        read()


def test_entries_replace_those_of_their_resource() -> None:
    policies = acl(entry("Topic:orders"), entry("Group:g", "Sub"))
    changed = policies.with_entries([entry("Topic:orders", "Sub", Decision.DENY), entry("Topic:new")])
    assert [(one.resource.key, one.decision.value) for one in changed.entries] == [
        ("Topic:orders", "Deny"),
        ("Group:g", "Allow"),
        ("Topic:new", "Allow"),
    ]
    left = changed.without(Resource.parse("Topic:orders"), PolicyType.CUSTOM)
    assert left is not None
    assert [one.resource.key for one in left.entries] == ["Group:g", "Topic:new"]
    assert acl(entry("*")).without(Resource.parse("*"), PolicyType.CUSTOM) is None
    assert acl(entry("*")).without(Resource.parse("*"), PolicyType.DEFAULT) == acl(entry("*"))


names = st.text("abc*-", min_size=1, max_size=4).filter(lambda text: "*" not in text[:-1])
resources = st.one_of(
    st.just("*"), st.builds(lambda kind, name: f"{kind}:{name}", st.sampled_from(["Topic", "Group", "Cluster"]), names)
)
entries = st.builds(
    PolicyEntry,
    resources.map(Resource.parse),
    st.frozensets(st.sampled_from(list(Action)), min_size=1),
    st.sampled_from(list(Decision)),
    st.sampled_from([(), ("10.1.0.0/16",), ("10.9.9.9",), ("10.1.2.3", "::/0")]),
    st.sampled_from(list(PolicyType)),
    st.integers(0, 1 << 40),
)
acls = st.lists(entries, min_size=1, max_size=6, unique_by=lambda one: one.key).map(lambda held: acl(*held))


@given(acls)
def test_policies_come_back_from_their_text(policies: Acl) -> None:
    table, copy = AclTable(), AclTable()
    table.put(policies, now_ms=5)
    copy.load_json(table.to_json())
    read = copy.get("User:ann")
    assert read is not None
    assert set(read.entries) == set(policies.entries)


class Original:
    """RocketMQ 5.3.4's AclAuthorizationHandler with PolicyEntry, Resource, Environment and IPAddressUtils, as rules
    and from the texts that an operator gives to either; nothing of ours is in it but the words of the enumerations."""

    def __init__(self, policies: Acl) -> None:
        self.entries = [
            (
                one.policy_type.value,
                self.resource(one.resource.key),
                {action.value for action in one.actions},
                one.decision.value,
                one.source_ips,
            )
            for one in policies.entries
        ]

    @staticmethod
    def resource(key: str) -> tuple[str, str | None, str]:
        """`Resource.of`"""
        if key == "*":
            return "Any", None, "Any"
        kind, _, name = key.partition(":")
        if name == "*":
            return kind, None, "Any"
        if name.endswith("*"):
            return kind, name.partition("*")[0], "Prefixed"
        return kind, name, "Literal"

    @staticmethod
    def is_match(ours: tuple[str, str | None, str], kind: str, name: str) -> bool:
        """`Resource.isMatch`"""
        own_kind, own_name, pattern = ours
        if own_kind == "Any":
            return True
        if own_kind != kind:
            return False
        if pattern == "Any":
            return True
        return name == own_name if pattern == "Literal" else name.startswith(own_name or "")

    @staticmethod
    def is_in_range(address: str, text: str) -> bool:
        """`IPAddressUtils.isIPInRange`: one address as its text, a network by numbers whatever the family."""
        parts = text.split("/")
        if len(parts) == 1:
            return address == text
        network = ip_address(parts[0])
        mask = -1 << network.max_prefixlen - int(parts[1])
        lower = int(network) & mask
        return lower <= int(ip_address(address)) <= lower + ~mask

    @staticmethod
    def compare(one: Any, other: Any) -> int:
        """`comparePolicyEntries`, whose comment puts Deny first among equals, and whose code puts Allow first."""
        (_, (kind1, name1, pattern1), _, decision1, _), (_, (kind2, name2, pattern2), _, decision2, _) = one, other
        order = 0
        if kind1 != kind2:
            order = -1 if kind2 == "Any" else 1 if kind1 == "Any" else 0
        elif pattern1 == pattern2:
            if pattern1 == "Prefixed":
                order = -1 * ((len(name1) > len(name2)) - (len(name1) < len(name2)))
        elif "Literal" in (pattern1, pattern2):
            order = -1 if pattern1 == "Literal" else 1
        elif "Prefixed" in (pattern1, pattern2):
            order = -1 if pattern1 == "Prefixed" else 1
        if order:
            return order
        return 1 if decision1 == "Deny" else -1 if decision2 == "Deny" else 0

    def allows(self, kind: str, name: str, actions: Collection[str], address: str) -> bool:
        for policy_type in ("Custom", "Default"):
            matching = [
                one
                for one in self.entries
                if one[0] == policy_type
                and self.is_match(one[1], kind, name)
                and any(action in one[2] or "All" in one[2] for action in actions)
                and (not one[4] or any(self.is_in_range(address, text) for text in one[4]))
            ]
            if matching:
                return bool(min(matching, key=cmp_to_key(self.compare))[3] == "Allow")
        return False


asked_names = st.text("abc-", min_size=1, max_size=4)
asked_actions = st.lists(
    st.sampled_from([one for one in Action if one is not Action.ALL]), min_size=1, max_size=3, unique=True
)
addresses = st.sampled_from(["10.1.2.3", "10.1.9.9", "10.9.9.9", "192.168.0.1", "fd00::7", "2001:db8::1"])


@settings(max_examples=600)
@given(acls, st.sampled_from(["Topic", "Group", "Cluster"]), asked_names, asked_actions, addresses)
def test_what_is_allowed_here_is_allowed_by_the_original(
    policies: Acl, kind: str, name: str, actions: list[Action], address: str
) -> None:
    """And the other way round, but for what ours is stricter in: a Deny wins over a more specific Allow, and an Allow
    for networks of IPv6 is none for IPv4. One exception: of several actions one that is allowed is enough here."""
    original = Original(policies)

    def ours(*asked: Action) -> bool:
        return decide(policies, ResourceKind(kind), name, asked, parse_address(address)).is_allowed

    for action in actions:
        theirs = original.allows(kind, name, [action.value], address)
        assert theirs or not ours(action)
        has_denies = any(one.decision is Decision.DENY for one in policies.entries)
        if not has_denies and not any("::/0" in one.source_ips for one in policies.entries):
            assert ours(action) == theirs
    if ours(*actions) and not original.allows(kind, name, [action.value for action in actions], address):
        assert len(actions) > 1
        assert any(original.allows(kind, name, [action.value], address) for action in actions)


@pytest.mark.parametrize(
    ("entries_of", "name", "address", "ours", "theirs"),
    [
        # The most specific resource decides there, a Deny here.
        (["Allow Topic:orders", "Deny Topic:*"], "orders", "10.1.2.3", False, True),
        (["Allow Topic:orders", "Deny Topic:ord*"], "orders", "10.1.2.3", False, True),
        (["Allow Topic:order*", "Deny Topic:ord*"], "orders", "10.1.2.3", False, True),
        (["Allow Topic:*", "Deny *"], "orders", "10.1.2.3", False, True),
        (["Deny Topic:orders", "Allow Topic:*"], "orders", "10.1.2.3", False, False),
        (["Deny Topic:order*", "Allow Topic:ord*"], "orders", "10.1.2.3", False, False),
        (["Allow Topic:ord*", "Deny Topic:orders"], "ordered", "10.1.2.3", True, True),
        # An address is an address here, and a text there.
        (["Allow Topic:orders FD00::1"], "orders", "fd00::1", True, False),
        (["Allow *", "Deny Topic:ord* FD00:0::1"], "orders", "fd00::1", False, True),
        # A network of IPv6 holds the numbers of IPv4 there.
        (["Allow Topic:orders ::/0"], "orders", "10.1.2.3", False, True),
        (["Allow *", "Deny Topic:orders ::/0"], "orders", "10.1.2.3", False, False),
        (["Allow Topic:orders 10.1.0.0/16"], "orders", "10.1.255.255", True, True),
        (["Allow Topic:orders 10.1.7.9/16"], "orders", "10.1.255.255", True, True),
        (["Allow Topic:orders 10.1.0.0/16"], "orders", "10.2.0.0", False, False),
    ],
)
def test_how_ours_differs_from_the_original(
    entries_of: list[str], name: str, address: str, ours: bool, theirs: bool
) -> None:
    """Whichever order the statements stand in."""
    made = []
    for text in entries_of:
        decision, resource, *ips = text.split()
        made.append(entry(resource, "Pub", Decision(decision), "".join(ips)))
    for ordered in permutations(made):
        assert decide(acl(*ordered), TOPIC, name, (Action.PUB,), parse_address(address)).is_allowed is ours
        assert Original(acl(*ordered)).allows("Topic", name, ["Pub"], address) is theirs


@given(acls, entries, st.text("abc-", min_size=1, max_size=4))
def test_a_deny_never_widens(policies: Acl, more: PolicyEntry, name: str) -> None:
    wider = policies.with_entries([replace(more, decision=Decision.DENY, policy_type=PolicyType.CUSTOM)])
    if not decide(policies, TOPIC, name, (Action.PUB,), HERE).is_allowed:
        replaced = {one.key for one in wider.entries} == {one.key for one in policies.entries}
        assert replaced or not decide(wider, TOPIC, name, (Action.PUB,), HERE).is_allowed


@given(acls, st.text("abc-", min_size=1, max_size=4), st.lists(st.sampled_from(list(Action)), min_size=1, max_size=3))
def test_of_several_actions_one_that_is_allowed_is_enough(policies: Acl, name: str, actions: list[Action]) -> None:
    """Whoever may send to a topic gets its route, or could not send, whatever else is denied."""
    alone = [decide(policies, TOPIC, name, (action,), HERE).is_allowed for action in actions]
    assert decide(policies, TOPIC, name, actions, HERE).is_allowed is any(alone)


def test_a_denied_action_is_the_reason_if_nothing_else_is_allowed() -> None:
    policies = acl(entry("Topic:ord*", "Sub", Decision.DENY))
    ruling = decide(policies, TOPIC, "orders", (Action.PUB, Action.SUB, Action.GET), HERE)
    assert (ruling.is_allowed, ruling.reason) == (False, "policy Topic:ord* denies it")


def test_users_come_back_and_do_not_show_their_secret() -> None:
    table, copy = UserTable(), UserTable()
    ann = User("ann", "sealed:v1:k:secret-text", UserType.SUPER, UserStatus.DISABLE)
    assert "secret-text" not in repr(ann)
    table.put(ann, now_ms=5)
    copy.load_json(table.to_json())
    assert copy.get("ann") == ann


def test_a_slave_follows_a_removal_and_keeps_what_nobody_removed() -> None:
    master, slave = UserTable(), UserTable()
    for table in (master, slave):
        table.put(User("ann", "sealed"), now_ms=1)
        table.put(User("bob", "sealed"), now_ms=2)
    master.remove("ann", now_ms=3)
    slave.put(User("cy", "sealed"), now_ms=3)
    notices = slave.apply_from_master(master.to_json(), master.version)
    assert sorted(user.username for user in slave) == ["bob", "cy"]
    assert len(notices) == 1
    assert "user cy" in notices[0]


DAY_MS = 86_400_000


@pytest.mark.parametrize("days", [1, 29, 31, 400])
def test_a_user_that_was_removed_long_ago_comes_back_by_no_old_disk_and_no_seed(days: int) -> None:
    """Its secret may have been the reason. Topics come back after a month, users do not."""
    master, old_disk = UserTable(), UserTable()
    for name in ("ann", "bob"):
        master.put(User(name, "sealed:v1:k:x"), now_ms=DAY_MS)
    old_disk.load_json(master.to_json())
    master.remove("ann", now_ms=2 * DAY_MS)
    master.remove("bob", now_ms=(2 + days) * DAY_MS)
    assert master.was_removed("ann"), "what a seed's file asks"
    restarted, slave = UserTable(), UserTable()
    restarted.load_json(master.to_json())
    assert restarted.was_removed("ann")
    slave.load_json(old_disk.to_json())
    slave.apply_from_master(restarted.to_json(), restarted.version)
    assert slave.get("ann") is None
    for first, second in ((restarted, old_disk), (old_disk, restarted)):
        merged = UserTable()
        merged.load_json(first.to_json())
        merged.merge_replica(second.to_json())
        assert merged.get("ann") is None
        assert merged.was_removed("ann")


@pytest.mark.parametrize("username", ["", "a b", "a/b", "a,b", "-a", "ü", "x" * 128])
def test_what_is_no_username_is_refused(username: str) -> None:
    with pytest.raises(InvalidUser, match="username"):
        User(username, "sealed").check()


@pytest.mark.parametrize(("key", "value"), [("userType", "Root"), ("userStatus", "maybe")])
def test_an_unknown_word_in_a_file_is_damage_not_a_default(key: str, value: str) -> None:
    table = UserTable()
    table.put(User("ann", "sealed"), now_ms=1)
    text = table.to_json().replace('"Normal"' if key == "userType" else '"enable"', f'"{value}"')
    with pytest.raises(MetadataCorrupt, match="ann"):
        UserTable().load_json(text)


def test_a_policy_that_cannot_be_read_is_damage() -> None:
    table = AclTable()
    table.put(acl(entry("Topic:orders", "Pub", Decision.DENY)), now_ms=1)
    with pytest.raises(MetadataCorrupt, match="User:ann"):
        AclTable().load_json(table.to_json().replace('"Deny"', '"Perhaps"'))


def test_no_source_at_all_is_every_source() -> None:
    assert source_ips_in([]) == source_ips_of("") == ()
    assert source_ips_in(["10.0.0.1, fd00::/8"]) == ("10.0.0.1", "fd00::/8")


def without_one_field(value: Any) -> Iterator[Any]:
    """The object without one of its fields, at any depth, or with nothing in it."""
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        rest = {name: one for name, one in value.items() if name != key}
        yield rest
        yield rest | {key: None}
        yield rest | {f"{key}x": inner}
        for less in without_one_field(inner):
            yield value | {key: less}


@pytest.mark.parametrize("table", [UserTable(), AclTable()])
def test_a_table_that_lacks_a_field_is_damaged_and_allows_nobody_more(table: UserTable | AclTable) -> None:
    """A user without its status would be enabled, an Allow without its addresses would count for all, and a table
    without its entries would have the first users made again. That somebody is gone no file can tell."""
    ann = User("ann", "sealed", status=UserStatus.DISABLE)
    policies = acl(entry("Topic:orders", ips="10.0.0.0/8"), entry("Topic:bills", "Sub", Decision.DENY))
    if isinstance(table, UserTable):
        table.put(ann, now_ms=1)
    else:
        table.put(policies, now_ms=1)
    refused = 0
    for text in map(json.dumps, without_one_field(json.loads(table.to_json()))):
        copy = type(table)()
        try:
            copy.load_json(text)
        except MetadataCorrupt:
            refused += 1
            continue
        for held in copy:
            if isinstance(held, User):
                assert replace(held, username="ann") == ann, text
            else:
                assert {replace(one, resource=Resource.parse("*"), changed_ms=0) for one in held.entries} <= {
                    replace(one, resource=Resource.parse("*"), changed_ms=0) for one in policies.entries
                }, text
    assert refused >= 12


def test_a_user_that_gives_way_is_told_without_its_secret() -> None:
    """The lines are logged."""
    lost, heir = UserTable(), UserTable()
    lost.put(User("shop", "sealed-secret"), now_ms=1)
    (line,) = lost.give_way(heir.to_json(), is_needed=lambda name: False)
    assert "shop" in line
    assert "sealed-secret" not in line
