"""A group's record in an annotation of a Lease, replaced under its resourceVersion.

The Lease's own fields are filled for people (`kubectl get lease`); nothing here reads them. The chart may make the
Lease without a record, so that the Role can name it and needs no right to create any.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from tandemmq.broker.failover.authority import CALL_LIMIT_S, AuthorityUnavailable, BlockingCalls, Held, SwapLost
from tandemmq.core.clock import Clock
from tandemmq.core.replication.group_record import GroupRecord, RecordUnreadable
from tandemmq.service.kubernetes_api import (
    AccessDenied,
    Document,
    Kind,
    KubernetesApi,
    KubernetesUnavailable,
    ObjectConflict,
    ObjectMissing,
    annotations_of,
    api_of_pod,
)
from tandemmq.service.loop_meter import SystemClock

__all__ = ["RECORD_ANNOTATION", "LeaseAuthority", "lease_of_pod"]

RECORD_ANNOTATION: Final = "tandemmq.io/broker-group-record"
# A call ends by itself before who waits for it gives up.
_STEP_LIMIT_S: Final = 0.9 * CALL_LIMIT_S
# Two groups that were given one Lease must not take each other's record for theirs.
_OWNER_ANNOTATION: Final = "tandemmq.io/broker-group-record-of"
# An update that changes nothing keeps the resourceVersion. With this none changes nothing.
_WRITE_ANNOTATION: Final = "tandemmq.io/broker-group-record-write"


class LeaseAuthority:
    """One Lease. Its version is its resourceVersion, so a change of anything else in it is a new version, too."""

    def __init__(self, api: KubernetesApi, lease: str, *, cluster: str, broker_name: str, clock: Clock) -> None:
        self._api = api
        self._lease = lease
        self._group = broker_name
        self._owner = f"{cluster}@{broker_name}"
        self._clock = clock
        # As last read or written: a replacement must bring the whole object. Only the thread of `_calls` has it.
        self._known: Document = {}
        self._calls = BlockingCalls(f"Lease {lease}, namespace {api.namespace}")

    async def read(self) -> Held | None:
        """See `Authority`."""
        return await self._calls.run(self._read)

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        """See `Authority`."""
        return await self._calls.run(lambda: self._swap(before, record))

    async def close(self) -> None:
        """See `Authority`."""
        self._calls.close()
        self._api.close()

    def _read(self) -> Held | None:
        found = self._get()
        text = annotations_of(found).get(RECORD_ANNOTATION) if found is not None else None
        if found is None or text is None:
            return None
        self._check_owner(found)
        try:
            return Held(GroupRecord.from_text(text), _version(found))
        except RecordUnreadable as error:
            raise AuthorityUnavailable(
                f"failoverAuthority: annotation {RECORD_ANNOTATION} of Lease {self._lease} cannot be read ({error}); "
                "remove it while all members of the group are stopped"
            ) from error

    def _swap(self, before: Held | None, record: GroupRecord) -> Held:
        replaced = self._object_of(before)
        document = self._document(replaced or {}, record)
        verb = "create" if replaced is None else "update"
        try:
            with self._asking(verb):
                if replaced is None:
                    written = self._api.create(Kind.LEASE, document)
                else:
                    written = self._api.replace(Kind.LEASE, self._lease, document)
        except (ObjectConflict, ObjectMissing) as error:
            raise SwapLost(f"Lease {self._lease} is another version: {error}") from error
        self._known = written
        return Held(record, _version(written))

    def _object_of(self, before: Held | None) -> Document | None:
        """The whole object that `before` was read from; None: there must be none. SwapLost."""
        if before is not None and _version(self._known) == before.version:
            return self._known
        found = self._get()
        if before is None:
            if found is None or RECORD_ANNOTATION not in annotations_of(found):
                return found
            self._check_owner(found)
        elif found is not None and _version(found) == before.version:
            return found
        raise SwapLost(f"Lease {self._lease} is another version")

    def _get(self) -> Document | None:
        # Without a resourceVersion the API server asks its store, not its memory.
        try:
            with self._asking("get"):
                self._known = self._api.read(Kind.LEASE, self._lease)
        except ObjectMissing:
            self._known = {}
            return None
        return self._known

    def _document(self, replaced: Document, record: GroupRecord) -> Document:
        # With the uid of what is replaced, so that one of the same name that was made since is left alone.
        spec = replaced.get("spec") or {}
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        holder, transitions = f"{self._group}-{record.master.broker_id}", record.epoch - 1
        is_renewal = (spec.get("holderIdentity"), spec.get("leaseTransitions")) == (holder, transitions)
        fields = {
            "holderIdentity": holder,
            "leaseDurationSeconds": -(-record.lease_ms // 1_000),
            "acquireTime": spec.get("acquireTime", now) if is_renewal else now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        annotations = {
            RECORD_ANNOTATION: record.to_text(),
            _OWNER_ANNOTATION: self._owner,
            _WRITE_ANNOTATION: secrets.token_hex(8),
        }
        metadata = replaced.get("metadata") or {"name": self._lease}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**metadata, "annotations": {**annotations_of(replaced), **annotations}},
            "spec": {**spec, **fields},
        }

    def _check_owner(self, found: Document) -> None:
        owner = annotations_of(found).get(_OWNER_ANNOTATION, self._owner)
        if owner != self._owner:
            raise AuthorityUnavailable(
                f"failoverAuthority: Lease {self._lease} keeps the record of {owner}, not of {self._owner}; give each "
                "group a Lease of its own"
            )

    @contextmanager
    def _asking(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (ObjectConflict, ObjectMissing):
            raise
        except AccessDenied as error:
            raise AuthorityUnavailable(
                f"failoverAuthority: may not {verb} leases.coordination.k8s.io {self._lease} in namespace "
                f"{self._api.namespace}; allow it in the Role of the broker's ServiceAccount ({error})"
            ) from error
        except KubernetesUnavailable as error:
            raise AuthorityUnavailable(f"Lease {self._lease}, {verb}: {error}") from error


def lease_of_pod(lease: str, *, cluster: str, broker_name: str) -> LeaseAuthority:
    """In this pod's namespace, by its ServiceAccount. ValueError: this is no pod."""
    try:
        api = api_of_pod(time_limit_s=_STEP_LIMIT_S)
    except KubernetesUnavailable as error:
        raise ValueError(
            f"failoverAuthority=kubernetes:{lease} needs a pod with a ServiceAccount's token ({error}); mount it, or "
            "use `file:` or `etcd:`"
        ) from error
    return LeaseAuthority(api, lease, cluster=cluster, broker_name=broker_name, clock=SystemClock())


def _version(document: Document) -> str:
    return str((document.get("metadata") or {}).get("resourceVersion", ""))
