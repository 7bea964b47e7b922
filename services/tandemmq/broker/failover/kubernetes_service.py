"""Has a group's Service lead to its master: the one address in the EndpointSlice of its name.

A client that loses its master dials the same name again, and is at the next one; while there is none, at a member that
may become it. The slice is replaced under its resourceVersion, and never by the master of an earlier epoch.
"""

from __future__ import annotations

from typing import Final

import structlog

from tandemmq.broker.failover.authority import AuthorityUnavailable, BlockingCalls
from tandemmq.core.routing.values import Address, parse_address
from tandemmq.service.kubernetes_api import (
    Document,
    Kind,
    KubernetesApi,
    KubernetesUnavailable,
    annotations_of,
    api_of_pod,
)

log = structlog.get_logger(__name__)

EPOCH_ANNOTATION: Final = "tandemmq.io/master-epoch"
# As long as the port of the Service is called this, what it leads to is that port of the slice.
_PORT_NAME: Final = "grpc"
_CALL_LIMIT_S: Final = 0.9
_LOOK_EACH_MS: Final = 10_000


class GroupService:
    """One EndpointSlice. `master` is this broker's client plane, in numbers."""

    def __init__(self, api: KubernetesApi, name: str, *, master: Address) -> None:
        self._api = api
        self._name = name
        self._master = master
        # Not the authority's thread: a slice that hangs must not cost a renewal.
        self._calls = BlockingCalls(f"EndpointSlice {name}, namespace {api.namespace}")
        self._led_epoch = 0
        self._looks_again_ms = 0
        self._told = ""

    async def lead_here(self, epoch: int, *, now_ms: int) -> None:
        """The master of `epoch` serves. Looks at once when the epoch is new, then each ten seconds: somebody may have
        emptied the slice. What fails is tried again at the next call."""
        if epoch == self._led_epoch and now_ms < self._looks_again_ms:
            return
        if await self._led_to_us(epoch):
            self._led_epoch, self._looks_again_ms = epoch, now_ms + _LOOK_EACH_MS

    async def stand_in(self, epoch: int) -> None:
        """The master of `epoch` has left, or is silent. Who dials until there is another one comes here, and waits: a
        client that is refused tries again after 1, 2.6, 5.2 and 9.3 s, and one that hears nothing after 20 s."""
        await self._led_to_us(epoch)

    async def _led_to_us(self, epoch: int) -> bool:
        """False: the API server did not say whether it does."""
        is_known = True
        try:
            problem = await self._calls.run(lambda: self._lead_here(epoch))
        except (AuthorityUnavailable, KubernetesUnavailable) as error:
            problem, is_known = str(error), False
        if problem and problem != self._told:
            log.warning(
                "service_does_not_lead_here",
                service=self._name,
                reason=problem,
                consequence="clients find this master by their routes",
                remedy="see that the EndpointSlice is there, that its addressType is the pods', and the broker's Role",
            )
        self._told = problem
        return is_known

    async def close(self) -> None:
        """Gives its connections back."""
        self._calls.close()
        self._api.close()

    def _lead_here(self, epoch: int) -> str:
        found = self._api.read(Kind.ENDPOINT_SLICE, self._name)
        known = annotations_of(found).get(EPOCH_ANNOTATION, "")
        if known.isdigit() and int(known) > epoch:
            return f"it is led by the master of epoch {known}, this one is of {epoch}"
        wanted = self._document(found, epoch)
        if found != wanted:
            self._api.replace(Kind.ENDPOINT_SLICE, self._name, wanted)
            log.info("service_leads_here", service=self._name, address=self._master.host, epoch=epoch)
        return ""

    def _document(self, found: Document, epoch: int) -> Document:
        metadata = found.get("metadata") or {}
        return {
            **found,
            "metadata": {**metadata, "annotations": {**annotations_of(found), EPOCH_ANNOTATION: str(epoch)}},
            "endpoints": [{"addresses": [self._master.host], "conditions": {"ready": True}}],
            "ports": [{"name": _PORT_NAME, "port": self._master.port, "protocol": "TCP", "appProtocol": "grpc"}],
        }


def service_of_pod(group_endpoint: str, *, master: Address) -> GroupService:
    """The Service that the first label of `group_endpoint` names. ValueError: this is no pod."""
    address = parse_address(group_endpoint)
    assert address is not None, "settings hold no other"
    try:
        api = api_of_pod(time_limit_s=_CALL_LIMIT_S)
    except KubernetesUnavailable as error:
        raise ValueError(f"groupEndpoint={group_endpoint} needs a pod's ServiceAccount ({error})") from error
    return GroupService(api, address.host.partition(".")[0], master=master)
