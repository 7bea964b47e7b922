"""What operators change about users and policies on this broker, and the seeds that a first start finds in a file.

A change is durable after `MetadataTables.written`, and its slaves have it within a second. A secret comes in as text,
is sealed at once, and never goes out again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from tandemmq.core.access.sealed_secrets import NONCE_BYTES, KeysUnreadable, SecretKeys
from tandemmq.core.access.users_and_policies import (
    USERS_MAX,
    Acl,
    InvalidAcl,
    InvalidUser,
    PolicyEntry,
    PolicyType,
    Resource,
    User,
    UserStatus,
    UserType,
    actions_of,
    check_said,
    check_secret,
    decision_of,
    policy_type_of,
    source_ips_in,
    user_of_subject,
    user_status_of,
    user_type_of,
)
from tandemmq.core.clock import Clock

if TYPE_CHECKING:
    from tandemmq.broker.metadata_tables import MetadataTables

log = structlog.get_logger(__name__)

_FILE_BYTES_MAX: Final = 4 << 20


class NoKeys(InvalidUser):
    """There is nothing to seal a secret with."""

    def __init__(self) -> None:
        super().__init__(
            "password: this broker has no key to seal it with; make one (openssl rand -base64 32), the same for all "
            "brokers, and name its file in authKeyPath"
        )


class SeedsUnreadable(ValueError):
    """The seeds' file is not what it should be; the message names the field. The operator's fault."""


class AccessChanges:
    """Event loop only; nothing blocks. Each method raises InvalidUser or InvalidAcl, with nothing changed."""

    def __init__(self, tables: MetadataTables, *, keys: SecretKeys | None, clock: Clock) -> None:
        self._tables = tables
        self._keys = keys
        self._clock = clock

    # Users

    def users(self, part: str = "") -> list[User]:
        """Users whose name contains `part`, by name."""
        return sorted((user for user in self._tables.users if part in user.username), key=lambda user: user.username)

    def user(self, username: str) -> User | None:
        return self._tables.users.get(username)

    def put_user(
        self,
        username: str,
        *,
        secret: str = "",
        sealed_secret: str = "",
        user_type: UserType | None = None,
        status: UserStatus | None = None,
        dry_run: bool = False,
    ) -> bool:
        """Makes a user, or changes what is given of one; False: it is just so already. `sealed_secret` is one of a
        broker with the same keys."""
        before = self._tables.users.get(username)
        if secret:
            sealed_secret = self._sealed(username, secret)
        elif sealed_secret and (self._keys is None or not self._opens(username, sealed_secret)):
            raise InvalidUser("password: it was sealed with a key that this broker has not; use the same key file")
        if before is None:
            if len(self._tables.users) >= USERS_MAX:
                raise InvalidUser(f"username: there are {USERS_MAX} users, and no more may be; delete some")
            user = User(username, sealed_secret, user_type or UserType.NORMAL, status or UserStatus.ENABLE)
        else:
            user = User(
                username, sealed_secret or before.sealed_secret, user_type or before.user_type, status or before.status
            )
        user.check()
        return user != before if dry_run else self._tables.put_user(user)

    def delete_user(self, username: str, *, dry_run: bool = False) -> bool:
        """Removes a user with its policies; False: there is no such user."""
        if dry_run:
            return self._tables.users.get(username) is not None
        return self._tables.remove_user(username)

    # Policies

    def acls(self, *, subject_part: str = "", resource_part: str = "") -> list[Acl]:
        """Policies of subjects that contain `subject_part`; with `resource_part` only entries of such resources."""
        found = []
        for acl in sorted(self._tables.acls, key=lambda acl: acl.subject):
            entries = tuple(entry for entry in acl.entries if resource_part in entry.resource.key)
            if subject_part in acl.subject and entries:
                found.append(Acl(acl.subject, entries))
        return found

    def put_entries(self, subject: str, entries: Sequence[PolicyEntry], *, dry_run: bool = False) -> bool:
        """Adds entries to a subject's, or replaces those of the same resources; False: they are just so already."""
        check_said(subject, entries)
        return self._put_entries(subject, entries, dry_run=dry_run)

    def _put_entries(self, subject: str, entries: Sequence[PolicyEntry], *, dry_run: bool = False) -> bool:
        if self._tables.users.get(user_of_subject(subject)) is None:
            raise InvalidAcl(f"subject: there is no user {user_of_subject(subject)}; make it first")
        before = self._tables.acls.get(subject)
        # The time of what does not change stays, or a repetition would be a change.
        held = {} if before is None else {entry.key: entry for entry in before.entries}
        now_ms = self._clock.wall_ms()
        stamped = [_stamped(entry, held.get(entry.key), now_ms) for entry in entries]
        acl = (before or Acl(subject, ())).with_entries(stamped)
        acl.check()
        return acl != before if dry_run else self._tables.put_acl(acl)

    def delete_entries(
        self,
        subject: str,
        resources: Sequence[Resource],
        policy_type: PolicyType = PolicyType.CUSTOM,
        *,
        dry_run: bool = False,
    ) -> bool:
        """Removes a subject's entries of some resources, or without any all; False: there are none."""
        user_of_subject(subject)
        before = self._tables.acls.get(subject)
        left = before
        if before is None:
            return False
        for resource in resources:
            left = left.without(resource, policy_type) if left is not None else None
        if not resources or left is None:
            return True if dry_run else self._tables.remove_acl(subject)
        return left != before if dry_run else self._tables.put_acl(left)

    async def written(self) -> None:
        """Returns when every change is durable: before anybody is told of it. NotSpread."""
        await self._tables.confirmed()

    # Seeds

    def sow(self, seeds: Seeds) -> None:
        """Makes users and policies of a file that there are none of. What operators changed since stays so."""
        for seed in seeds.users:
            if self._tables.users.get(seed.username) is None and not self._tables.users.was_removed(seed.username):
                self.put_user(
                    seed.username, secret=seed.secret.get_secret_value(), user_type=seed.user_type, status=seed.status
                )
                log.info("user_created", by="authSeedPath", user=seed.username, user_type=seed.user_type.value)
        for acl in seeds.acls:
            subject = acl.subject
            username = user_of_subject(subject)
            if self._tables.acls.get(subject) is not None or self._tables.acls.was_removed(subject):
                continue
            if self._tables.users.get(username) is not None:
                self._put_entries(subject, acl.entries)
                log.info("acl_created", by="authSeedPath", subject=subject, entries=len(acl.entries))
                try:
                    check_said(subject, acl.entries)
                except InvalidAcl as error:
                    # The file was taken before; a broker that does not start would be worse.
                    log.warning("acl_never_counts", by="authSeedPath", subject=subject, reason=str(error))
            elif not self._tables.users.was_removed(username):
                log.warning(
                    "acl_not_created",
                    by="authSeedPath",
                    subject=subject,
                    reason=f"there is no user {username}",
                    remedy="name the user in the file, or make it and start this broker again",
                )

    # Inside

    def _sealed(self, username: str, secret: str) -> str:
        check_secret(secret)
        if self._keys is None:
            raise NoKeys
        return self._keys.seal(username, secret, nonce=secrets.token_bytes(NONCE_BYTES))

    def _opens(self, username: str, sealed: str) -> bool:
        try:
            return self._keys is not None and bool(self._keys.open(username, sealed))
        except ValueError:
            return False


def _stamped(entry: PolicyEntry, before: PolicyEntry | None, now_ms: int) -> PolicyEntry:
    changed_ms = now_ms
    if before is not None and entry.to_fields() | {"time": 0} == before.to_fields() | {"time": 0}:
        changed_ms = before.changed_ms
    return PolicyEntry(entry.resource, entry.actions, entry.decision, entry.source_ips, entry.policy_type, changed_ms)


# Files that the operator mounts


class _SeedUser(NamedTuple):
    username: str
    secret: SecretStr
    user_type: UserType
    status: UserStatus


class Seeds(NamedTuple):
    """What a first start makes."""

    users: tuple[_SeedUser, ...] = ()
    acls: tuple[Acl, ...] = ()


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _UserDocument(_Document):
    username: str
    password: SecretStr
    user_type: str = Field(UserType.NORMAL.value, alias="userType")
    user_status: str = Field(UserStatus.ENABLE.value, alias="userStatus")


class _EntryDocument(_Document):
    resource: str
    actions: list[str] = Field(min_length=1)
    source_ips: list[str] = Field(default_factory=list, alias="sourceIps")
    decision: str = "Allow"


class _PolicyDocument(_Document):
    policy_type: str = Field(PolicyType.CUSTOM.value, alias="policyType")
    entries: list[_EntryDocument] = Field(min_length=1)


class _AclDocument(_Document):
    subject: str
    policies: list[_PolicyDocument] = Field(min_length=1)


class _SeedsDocument(_Document):
    users: Annotated[list[_UserDocument], Field(max_length=USERS_MAX)] = []
    acls: Annotated[list[_AclDocument], Field(max_length=USERS_MAX)] = []


def read_seeds(path: str) -> Seeds:
    """Reads the file of `authSeedPath`, YAML or JSON; none for an empty path. Raises SeedsUnreadable, which shows no
    secret, and OSError."""
    if not path:
        return Seeds()
    import yaml  # For the few brokers that have such a file.

    try:
        document = _SeedsDocument.model_validate(yaml.safe_load(_text_of(path)) or {})
        users = tuple(
            _SeedUser(one.username, one.password, user_type_of(one.user_type), user_status_of(one.user_status))
            for one in document.users
        )
        for user in users:
            check_secret(user.secret.get_secret_value())
            User(user.username, "sealed").check()
        acls = tuple(Acl(one.subject, _entries_of(one)) for one in document.acls)
        for acl in acls:
            acl.check()
        _check_single("users", [user.username for user in users])
        _check_single("acls", [acl.subject for acl in acls])
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SeedsUnreadable(f"{field}: {first['msg']}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise SeedsUnreadable(f"no YAML at line {mark.line + 1 if mark else 1}") from None
    except (InvalidUser, InvalidAcl) as error:
        raise SeedsUnreadable(str(error)) from None
    return Seeds(users, acls)


def _check_single(field: str, names: list[str]) -> None:
    """The second of a name would not count, and a Deny may be in it."""
    if len(names) > len(set(names)):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise SeedsUnreadable(f"{field}: {twice} stands there twice; write it once, with all that belongs to it")


def _entries_of(document: _AclDocument) -> tuple[PolicyEntry, ...]:
    return tuple(
        PolicyEntry(
            Resource.parse(entry.resource),
            actions_of(",".join(entry.actions)),
            decision_of(entry.decision),
            source_ips_in(entry.source_ips),
            policy_type_of(policy.policy_type),
        )
        for policy in document.policies
        for entry in policy.entries
    )


def read_keys(path: str) -> SecretKeys | None:
    """The keys of `authKeyPath`; None for an empty path. Raises KeysUnreadable and OSError."""
    return SecretKeys.parse(_text_of(path)) if path else None


def _text_of(path: str) -> str:
    with Path(path).open("rb") as file:
        data = file.read(_FILE_BYTES_MAX + 1)
    if len(data) > _FILE_BYTES_MAX:
        raise KeysUnreadable(f"{path} is longer than {_FILE_BYTES_MAX} bytes: it is another file")
    return data.decode("utf-8", "replace")
