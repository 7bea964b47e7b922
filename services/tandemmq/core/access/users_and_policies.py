"""Who may use the client API, and for what: RocketMQ 5's users and policies (ACL 2.0), with its words.

A user is known by a name and a secret. A policy belongs to a subject, `User:NAME`; its entries say which actions on
which resources are allowed, or denied, from where. The decision is stricter than RocketMQ's: an entry that matches and
denies always wins, where RocketMQ takes the entry of the most specific resource. What else it answers otherwise is in
docs/operations/users-and-policies.md. As there, entries of type Default count only where no entry of type Custom
matches, what nothing matches is denied, and users of type Super may do everything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

from tandemmq.core.metadata.metadata_store import JavaObject, JavaValue, MetadataCorrupt, MetadataError
from tandemmq.core.metadata.replica_merge import NamedTable

USERS_MAX: Final = 10_000
ENTRIES_MAX: Final = 1_000
"""Of one subject: each decision that is not remembered looks at all."""
SOURCE_IPS_MAX: Final = 100
SECRET_CHARACTERS_MIN: Final = 8
SECRET_CHARACTERS_MAX: Final = 256
NAME_CHARACTERS_MAX: Final = 127
RESOURCE_CHARACTERS_MAX: Final = 255
"""Of a topic or a group in a policy; no name of either is longer."""
_MAPPED_BITS: Final = 96
"""Of IPv6 addresses that are written for one of IPv4: `::ffff:10.0.0.7`."""
_MAPPED_FIRST: Final = int(IPv6Address("::ffff:0:0"))
_USERNAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,126}")
_SUBJECT: Final = "User:"
_RETRY: Final = "%RETRY%"
_NAME: Final = re.compile(r"[%|A-Za-z0-9_-]+")
"""Of what topics and groups are called."""
_ANYTHING: Final = "*"

Address: TypeAlias = IPv4Address | IPv6Address
WordT = TypeVar("WordT", bound=StrEnum)


class InvalidUser(MetadataError):
    """A user cannot be so; the message names the field and says what is allowed. The operator's fault."""


class InvalidAcl(MetadataError):
    """A policy cannot be so; the message names the field and says what is allowed. The operator's fault."""


# Users


class UserType(StrEnum):
    """Super users may do everything; normal ones what their policies allow."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    """A disabled user cannot sign in."""

    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class User:
    """One user. `sealed_secret` is its secret as `tandemmq.core.access.sealed_secrets` seals it."""

    username: str
    sealed_secret: str = field(repr=False)
    user_type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    @property
    def name(self) -> str:
        return self.username

    def check(self) -> None:
        """Raises InvalidUser unless it may be made."""
        if not _USERNAME.fullmatch(self.username):
            raise InvalidUser(
                f"username: {self.username[:NAME_CHARACTERS_MAX]!r}; use 1 to {NAME_CHARACTERS_MAX} of A-Z a-z 0-9 "
                ". _ @ + -, a letter or digit first"
            )
        if not self.sealed_secret:
            raise InvalidUser("password: a user needs one")

    def to_fields(self) -> dict[str, JavaValue]:
        """The JSON object of the table."""
        return {
            "username": self.username,
            "userType": self.user_type.value,
            "userStatus": self.status.value,
            "sealedPassword": self.sealed_secret,
        }

    @classmethod
    def from_object(cls, name: str, fields: JavaObject) -> Self:
        """Reads one user. MetadataCorrupt for a word that is none, or is missing: it must not become one that may
        more."""
        fields.require("userType", "userStatus", "sealedPassword")
        try:
            user_type = UserType(fields.text("userType", ""))
            status = UserStatus(fields.text("userStatus", ""))
        except ValueError as error:
            raise MetadataCorrupt(f"user {name}: {error}") from error
        return cls(name, fields.text("sealedPassword", ""), user_type, status)


class UserTable(NamedTable[User]):
    def __init__(self) -> None:
        super().__init__(User, kind="user", field="userTable", marks_kept_ms=None, is_whole=True)


def check_secret(secret: str) -> None:
    """Raises InvalidUser unless it may be one; the message does not show it."""
    if not SECRET_CHARACTERS_MIN <= len(secret) <= SECRET_CHARACTERS_MAX or not secret.isprintable():
        raise InvalidUser(
            f"password: use {SECRET_CHARACTERS_MIN} to {SECRET_CHARACTERS_MAX} printable characters; "
            "`tandemmq user create` makes a good one if none is given"
        )


# Policies


class ResourceKind(StrEnum):
    ANY = "Any"
    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(StrEnum):
    """How a resource's name is compared."""

    ANY = "Any"
    LITERAL = "Literal"
    PREFIXED = "Prefixed"


class Action(StrEnum):
    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(StrEnum):
    """What an entry says."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(StrEnum):
    """Default entries count where no custom one matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Resource(NamedTuple):
    """A resource, or a pattern of such: `Topic:orders`, `Topic:orders-*`, `Group:*`, `*`."""

    kind: ResourceKind
    name: str
    """Empty with Pattern.ANY."""
    pattern: Pattern = Pattern.LITERAL

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Reads RocketMQ's form. Raises InvalidAcl."""
        if text == _ANYTHING:
            return cls(ResourceKind.ANY, "", Pattern.ANY)
        kind_text, colon, name = text.partition(":")
        kind = _word_of(ResourceKind, kind_text)
        if kind is None or kind is ResourceKind.ANY or not colon or not name:
            raise InvalidAcl(
                f"resource: {text[:200]!r}; write Topic:NAME, Group:NAME or Cluster:NAME, NAME* for all that begin so, "
                "Topic:* for all topics, or * for everything"
            )
        if not (len(name) <= RESOURCE_CHARACTERS_MAX and name.isprintable() and not {",", " "} & set(name)):
            raise InvalidAcl(f"resource: {name[:100]!r} is no name: up to 255 printable characters, no comma, no space")
        if name == _ANYTHING:
            return cls(kind, "", Pattern.ANY)
        if _ANYTHING in name[:-1]:
            raise InvalidAcl(f"resource: {text[:200]!r}; a * may only be the last character")
        if name.endswith(_ANYTHING):
            return cls(kind, name[:-1], Pattern.PREFIXED)
        return cls(kind, name)

    @property
    def key(self) -> str:
        if self.kind is ResourceKind.ANY:
            return _ANYTHING
        name = self.name if self.pattern is Pattern.LITERAL else f"{self.name}*"
        return f"{self.kind.value}:{name}"

    def covers(self, kind: ResourceKind, name: str) -> bool:
        if self.kind is ResourceKind.ANY:
            return True
        if self.kind is not kind:
            return False
        if self.pattern is Pattern.LITERAL:
            return self.name == name
        return self.pattern is Pattern.ANY or name.startswith(self.name)


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """What a subject may do with a resource. `changed_ms` is the wall clock of its last change."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    source_ips: tuple[str, ...] = ()
    """Addresses and networks (CIDR) it counts for; empty: all."""
    policy_type: PolicyType = PolicyType.CUSTOM
    changed_ms: int = 0

    @property
    def key(self) -> str:
        """No two entries of a subject have the same."""
        return f"{self.policy_type.value} {self.resource.key}"

    def matches(self, kind: ResourceKind, name: str, actions: Collection[Action], address: Address | None) -> bool:
        """Whether it has something to say. An address that is not known is in no network: for an entry that denies it
        is in all."""
        if not self.resource.covers(kind, name):
            return False
        if Action.ALL not in self.actions and not self.actions.intersection(actions):
            return False
        if not self.source_ips:
            return True
        if address is None:
            return self.decision is Decision.DENY
        networks = [_network(text) for text in self.source_ips]
        if any(address in network for network in networks):
            return True
        # An IPv4 address lies in ::/0 as well, as it is written in IPv6: who denies that means everybody.
        return (
            self.decision is Decision.DENY
            and isinstance(address, IPv4Address)
            and any(IPv6Address(_MAPPED_FIRST + int(address)) in network for network in networks)
        )

    def to_fields(self) -> dict[str, JavaValue]:
        """The JSON object of the table."""
        return {
            "actions": ",".join(action.value for action in Action if action in self.actions),
            "decision": self.decision.value,
            "sourceIps": ",".join(self.source_ips),
            "time": self.changed_ms,
        }


@dataclass(frozen=True, slots=True)
class Acl:
    """All entries of one subject, `User:NAME`."""

    subject: str
    entries: tuple[PolicyEntry, ...]

    @property
    def name(self) -> str:
        return self.subject

    def check(self) -> None:
        """Raises InvalidAcl unless it may be made."""
        user_of_subject(self.subject)
        if not self.entries:
            raise InvalidAcl("entries: name at least one resource")
        if len(self.entries) > ENTRIES_MAX:
            raise InvalidAcl(f"entries: {len(self.entries)}, the limit is {ENTRIES_MAX}; use prefixes (NAME*)")
        for entry in self.entries:
            if not entry.actions:
                raise InvalidAcl(f"actions: {entry.resource.key} has none; name some of {_words(Action)}")
            if len(entry.source_ips) > SOURCE_IPS_MAX:
                raise InvalidAcl(f"sourceIp: {len(entry.source_ips)} of them, the limit is {SOURCE_IPS_MAX}; use CIDR")
        # Only one of them would count, and a Deny may be the other.
        first: dict[str, PolicyEntry] = {}
        for entry in self.entries:
            if first.setdefault(entry.key, entry) != entry:
                raise InvalidAcl(f"resource: {entry.resource.key} has two entries of the same type; say it in one")

    def with_entries(self, entries: Iterable[PolicyEntry]) -> Acl:
        """With these in place of those of the same type and resource."""
        held = {entry.key: entry for entry in self.entries}
        held.update({entry.key: entry for entry in entries})
        return replace(self, entries=tuple(held.values()))

    def without(self, resource: Resource, policy_type: PolicyType) -> Acl | None:
        """Without the entry of the resource; None: none is left."""
        left = tuple(entry for entry in self.entries if (entry.resource, entry.policy_type) != (resource, policy_type))
        return replace(self, entries=left) if left else None

    def to_fields(self) -> dict[str, JavaValue]:
        """The JSON object of the table."""
        policies: dict[str, JavaValue] = {}
        for policy_type in PolicyType:
            held = {one.resource.key: one.to_fields() for one in self.entries if one.policy_type is policy_type}
            if held:
                policies[policy_type.value] = held
        return {"policies": policies}

    @classmethod
    def from_object(cls, name: str, fields: JavaObject) -> Self:
        """Reads those of one subject. MetadataCorrupt for what cannot be read: a Deny must not get lost, nor what an
        Allow is bound to."""
        entries: list[PolicyEntry] = []
        fields.require("policies")
        policies = fields.object("policies")
        try:
            for type_text in policies:
                policy_type, held = PolicyType(type_text), policies.object(type_text)
                for key in held:
                    one = held.object(key)
                    one.require("actions", "decision", "sourceIps")
                    entries.append(
                        PolicyEntry(
                            Resource.parse(key),
                            actions_of(one.text("actions", "")),
                            Decision(one.text("decision", "")),
                            source_ips_of(one.text("sourceIps", "")),
                            policy_type,
                            one.integer("time", 0),
                        )
                    )
        except (InvalidAcl, ValueError) as error:
            raise MetadataCorrupt(f"policies of {name}: {error}") from error
        if not entries or not all(entry.actions for entry in entries):
            raise MetadataCorrupt(f"policies of {name}: there is none, or one without actions")
        return cls(name, tuple(entries))


class AclTable(NamedTable[Acl]):
    """All policies of this broker, by subject."""

    def __init__(self) -> None:
        super().__init__(Acl, kind="policies of", field="aclTable", marks_kept_ms=None, is_whole=True)


def check_said(subject: str, entries: Sequence[PolicyEntry]) -> None:
    """Raises InvalidAcl unless an operator may say so of a subject now. Tables may hold what could be said before."""
    Acl(subject, tuple(entries)).check()
    for entry in entries:
        kind, name, key = entry.resource.kind, entry.resource.name, entry.resource.key
        if kind is ResourceKind.TOPIC and name.startswith(_RETRY):
            group = key.partition(_RETRY)[2] or "*"
            raise InvalidAcl(f"resource: {key} never counts: a retry topic is its group; name Group:{group}")
        if kind in (ResourceKind.TOPIC, ResourceKind.GROUP) and name and not _NAME.fullmatch(name):
            # In ASCII, so that a letter of another alphabet is seen.
            raise InvalidAcl(
                f"resource: {key!a} never counts: no {kind.value.lower()} has such a name, of other characters "
                "than A-Z a-z 0-9 _ - % |"
            )


def user_of_subject(subject: str) -> str:
    """The user of `User:NAME`. Raises InvalidAcl."""
    username = subject.removeprefix(_SUBJECT)
    if not subject.startswith(_SUBJECT) or not _USERNAME.fullmatch(username):
        raise InvalidAcl(f"subject: {subject[:200]!r}; write User:NAME")
    return username


def actions_of(text: str) -> frozenset[Action]:
    """Actions separated by commas, in any case. Raises InvalidAcl."""
    actions: set[Action] = set()
    for word in _parts(text):
        action = _word_of(Action, word)
        if action is None:
            raise InvalidAcl(f"actions: {word[:50]!r}; use {_words(Action)}")
        actions.add(action)
    return frozenset(actions)


def source_ips_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Addresses and networks that an operator names; without any text it counts for all. Raises InvalidAcl, for an
    empty text as well: a variable that is not set must not make a policy count for everybody."""
    named = [part for text in texts for part in text.split(",")]
    if not all(part.strip() for part in named):
        raise InvalidAcl("sourceIp: one is empty; name addresses or networks, or leave it out for all")
    return source_ips_of(",".join(named))


def source_ips_of(text: str) -> tuple[str, ...]:
    """Addresses and networks separated by commas. Raises InvalidAcl."""
    parts = tuple(_parts(text))
    for part in parts:
        try:
            _network(part)
        except ValueError as error:
            raise InvalidAcl(f"sourceIp: {part[:50]!r} is no address and no network: {error}") from error
    return parts


def decision_of(text: str) -> Decision:
    """Allow or Deny, in any case. Raises InvalidAcl."""
    decision = _word_of(Decision, text)
    if decision is None:
        raise InvalidAcl(f"decision: {text[:50]!r}; use Allow or Deny")
    return decision


# The decision


class Ruling(NamedTuple):
    """Whether a request may go on, and why (not), for the log."""

    is_allowed: bool
    reason: str


_NO_ENTRY: Final = Ruling(False, "no policy allows it")


def decide(
    acl: Acl | None, kind: ResourceKind, name: str, actions: Collection[Action], address: Address | None
) -> Ruling:
    """What the policies of a normal user say of a request that one of `actions` on a resource is enough for: a Deny of
    one takes nothing from the others."""
    if acl is None:
        return _NO_ENTRY
    ruling = _NO_ENTRY
    for action in actions:
        found = _decide_one(acl, kind, name, action, address)
        if found.is_allowed:
            return found
        if ruling is _NO_ENTRY:
            ruling = found
    return ruling


def _decide_one(acl: Acl, kind: ResourceKind, name: str, action: Action, address: Address | None) -> Ruling:
    matching = [entry for entry in acl.entries if entry.matches(kind, name, (action,), address)]
    custom = [entry for entry in matching if entry.policy_type is PolicyType.CUSTOM]
    counting = custom or matching
    for entry in counting:
        if entry.decision is Decision.DENY:
            return Ruling(False, f"policy {entry.resource.key} denies it")
    return Ruling(True, f"policy {counting[0].resource.key} allows it") if counting else _NO_ENTRY


def parse_address(text: str) -> Address | None:
    """An address in numbers, IPv4 also where it is written as IPv6; None: it is none."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(maxsize=4_096)
def _network(text: str) -> IPv4Network | IPv6Network:
    """A network in numbers, IPv4 also where it is written as IPv6: addresses are compared so."""
    network = ip_network(text, strict=False)
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def _parts(text: str) -> Iterable[str]:
    return (part.strip() for part in text.split(",") if part.strip())


def _word_of(words: type[WordT], text: str) -> WordT | None:
    return next((word for word in words if word.value.lower() == text.strip().lower()), None)


def _words(words: type[StrEnum]) -> str:
    return ", ".join(word.value for word in words)


def user_type_of(text: str) -> UserType:
    """Super or Normal, in any case. Raises InvalidUser."""
    found = _word_of(UserType, text)
    if found is None:
        raise InvalidUser(f"userType: {text[:50]!r}; use Super or Normal")
    return found


def user_status_of(text: str) -> UserStatus:
    """enable or disable, in any case. Raises InvalidUser."""
    found = _word_of(UserStatus, text)
    if found is None:
        raise InvalidUser(f"userStatus: {text[:50]!r}; use enable or disable")
    return found


def policy_type_of(text: str) -> PolicyType:
    """Custom or Default, in any case; empty: Custom. Raises InvalidAcl."""
    found = _word_of(PolicyType, text or PolicyType.CUSTOM.value)
    if found is None:
        raise InvalidAcl(f"policyType: {text[:50]!r}; use Custom or Default")
    return found


def topic_or_group(topic: str) -> tuple[ResourceKind, str]:
    """What a topic's name is to a policy: a group's retry topic is the group, as in RocketMQ."""
    if topic.startswith(_RETRY):
        return ResourceKind.GROUP, topic[len(_RETRY) :]
    return ResourceKind.TOPIC, topic
