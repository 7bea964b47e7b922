"""Where a group's record is kept, as tests see it from behind: a folder, a small etcd, a small API server.

Each can hold a text that is no record, fall silent, and apply a swap without telling.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Protocol
from unittest import mock

import grpc

from support.kubernetes_pod import pod_of
from tandemmq.broker.failover import authority as authority_module
from tandemmq.broker.failover.authority import RECORD_ANNOTATION, Authority, open_authority
from tandemmq.proto.etcdserverpb import kv_pb2 as pb
from tandemmq.proto.etcdserverpb import kv_pb2_grpc

CLUSTER: Final = "DefaultCluster"
LEASE: Final = "mq-broker-a"


_LIMITS: Final = {
    name: getattr(authority_module, name) for name in ("CALL_LIMIT_S", "_LOCK_LIMIT_S", "_SEARCH_LIMIT_S")
}


@contextmanager
def patient(factor: float) -> Iterator[None]:
    """Calls to authorities may take so many times as long as they may in the product."""
    with mock.patch.multiple(authority_module, **{name: factor * limit_s for name, limit_s in _LIMITS.items()}):
        yield


class AuthorityPlace(Protocol):
    """One place, and what can be done to it."""

    def open(self, broker_name: str = "broker-a") -> Authority:
        """Another client of the record."""

    def plant(self, text: str) -> None:
        """Puts a text where broker-a's record is."""

    def text(self) -> str:
        """What is there."""

    def silent(self) -> Any:
        """A context in which it answers nothing and does nothing."""

    def applying_silently(self) -> Any:
        """A context in which it does what it is asked, and does not tell."""

    def writes(self) -> int | None:
        """How many writes reached it; None: nobody can be asked twice here."""


class FilePlace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / f"{CLUSTER}@broker-a.json"
        folder.mkdir()

    def open(self, broker_name: str = "broker-a") -> Authority:
        return open_authority(f"file:{self.folder}", cluster=CLUSTER, broker_name=broker_name)

    def plant(self, text: str) -> None:
        self.path.write_text(text)

    def text(self) -> str:
        return self.path.read_text()

    def writes(self) -> int | None:
        return None

    @contextmanager
    def silent(self) -> Iterator[None]:
        away = self.folder.with_name("away")
        self.folder.rename(away)
        yield
        away.rename(self.folder)

    @contextmanager
    def applying_silently(self) -> Iterator[None]:
        with mock.patch.object(authority_module.FileAuthority, "_sync", side_effect=OSError(5, "Input/output error")):
            yield


class FakeEtcd(kv_pb2_grpc.KVServicer):
    """Keys with revisions, as a member of etcd answers for them."""

    def __init__(self) -> None:
        self.revision = 1
        self.values: dict[bytes, tuple[int, bytes]] = {}
        self.txn_count = 0
        self.is_silent = False
        self.keeps_answers = False

    async def Range(self, request: pb.RangeRequest, context: Any) -> pb.RangeResponse:
        await self._wait_if(self.is_silent)
        assert not request.serializable
        revision, value = self.values.get(request.key, (0, b""))
        kvs = [pb.KeyValue(key=request.key, mod_revision=revision, value=value)] if revision else []
        return pb.RangeResponse(header=pb.ResponseHeader(revision=self.revision), kvs=kvs)

    async def Txn(self, request: pb.TxnRequest, context: Any) -> pb.TxnResponse:
        self.txn_count += 1
        await self._wait_if(self.is_silent)
        [compare], [operation] = request.compare, request.success
        assert (compare.result, compare.target) == (pb.Compare.EQUAL, pb.Compare.MOD)
        succeeded = self.values.get(compare.key, (0, b""))[0] == compare.mod_revision
        if succeeded:
            self.revision += 1
            self.values[operation.request_put.key] = self.revision, operation.request_put.value
        await self._wait_if(self.keeps_answers)
        return pb.TxnResponse(header=pb.ResponseHeader(revision=self.revision), succeeded=succeeded)

    @staticmethod
    async def _wait_if(is_waiting: bool) -> None:
        if is_waiting:
            await asyncio.Event().wait()


class EtcdPlace:
    """Two members of one etcd, which are one here."""

    def __init__(self, etcd: FakeEtcd, ports: list[int]) -> None:
        self.etcd = etcd
        self.setting = f"etcd:{','.join(f'127.0.0.1:{port}' for port in ports)}/test/records"
        self.key = f"/test/records/{CLUSTER}/broker-a".encode()

    def open(self, broker_name: str = "broker-a") -> Authority:
        return open_authority(self.setting, cluster=CLUSTER, broker_name=broker_name)

    def plant(self, text: str) -> None:
        self.etcd.revision += 1
        self.etcd.values[self.key] = self.etcd.revision, text.encode()

    def text(self) -> str:
        return self.etcd.values[self.key][1].decode()

    def writes(self) -> int | None:
        return self.etcd.txn_count

    @contextmanager
    def silent(self) -> Iterator[None]:
        self.etcd.is_silent = True
        yield
        self.etcd.is_silent = False

    @contextmanager
    def applying_silently(self) -> Iterator[None]:
        self.etcd.keeps_answers = True
        yield
        self.etcd.keeps_answers = False


@asynccontextmanager
async def etcd_place() -> AsyncIterator[EtcdPlace]:
    """While the context lasts."""
    etcd = FakeEtcd()
    server = grpc.aio.server()
    kv_pb2_grpc.add_KVServicer_to_server(etcd, server)
    ports = [server.add_insecure_port("127.0.0.1:0") for _ in range(2)]
    await server.start()
    try:
        yield EtcdPlace(etcd, ports)
    finally:
        await server.stop(None)


class LeasePlace(ThreadingHTTPServer):
    """Leases of the namespace `mq`, and EndpointSlices as `endpointslices/NAME`: resourceVersion, uid and their
    conflicts, as the API server has them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _LeaseHandler)
        self.leases: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.lock = threading.Lock()
        self.write_count = 0
        self.status = 200
        self.is_silent = False
        self.keeps_answers = False
        self.may_answer = threading.Event()

    def open(self, broker_name: str = "broker-a") -> Authority:
        return open_authority(f"kubernetes:{LEASE}", cluster=CLUSTER, broker_name=broker_name)

    def plant(self, text: str) -> None:
        self.put_lease({RECORD_ANNOTATION: text})

    def text(self) -> str:
        return str(self.leases[LEASE]["metadata"]["annotations"][RECORD_ANNOTATION])

    def put_lease(self, annotations: dict[str, str], **metadata: Any) -> None:
        """Made by somebody else."""
        metadata = {"name": LEASE, "uid": "uid-of-somebody", **metadata, "annotations": annotations}
        self.leases[LEASE] = self._stored({"metadata": metadata})

    def put_slice(self, **fields: Any) -> None:
        """As the chart makes it."""
        self.leases[f"endpointslices/{LEASE}"] = self._stored(
            {"metadata": {"name": LEASE, "uid": "uid-of-somebody"}, "addressType": "IPv4", "endpoints": [], **fields}
        )

    def slice(self) -> dict[str, Any]:
        return self.leases[f"endpointslices/{LEASE}"]

    def writes(self) -> int | None:
        return self.write_count

    @contextmanager
    def silent(self) -> Iterator[None]:
        self.is_silent = True
        yield
        self.is_silent = False

    @contextmanager
    def applying_silently(self) -> Iterator[None]:
        self.keeps_answers = True
        yield
        self.keeps_answers = False

    def answer(self, verb: str, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and object."""
        with self.lock:
            if self.status != 200:
                return self.status, {"message": "leases.coordination.k8s.io is forbidden"}
            found = self.leases.get(name)
            if verb == "GET":
                return (200, found) if found is not None else (404, {"message": "not found"})
            self.write_count += 1
            if verb == "POST":
                name = body["metadata"]["name"]
                if name in self.leases:
                    return 409, {"message": "already exists"}
                body["metadata"]["uid"] = f"uid-{self.version}"
            else:
                # Of a Lease that is gone the real one says so too, by the uid.
                if found is None:
                    return 409, {"message": "Precondition failed: UID in precondition"}
                keys = ("resourceVersion", "uid")
                if any(body["metadata"][key] != found["metadata"][key] for key in keys):
                    return 409, {"message": "the object has been modified"}
                # What changes nothing is no new version.
                if body == found:
                    return 200, found
            self.leases[name] = self._stored(body)
            return 200, self.leases[name]

    def _stored(self, document: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        return {**document, "metadata": {**document["metadata"], "resourceVersion": str(self.version)}}


_COLLECTIONS: Final = {
    ("/apis/coordination.k8s.io/v1/namespaces/mq", "leases"),
    ("/apis/discovery.k8s.io/v1/namespaces/mq", "endpointslices"),
}


class _LeaseHandler(BaseHTTPRequestHandler):
    server: LeasePlace

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_PUT(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Says nothing."""

    def _answer(self, body: dict[str, Any]) -> None:
        base, plural, name = self.path.rsplit("/", 2) if self.command != "POST" else (*self.path.rsplit("/", 1), "")
        assert (base, plural) in _COLLECTIONS, self.path
        if self.server.is_silent:
            self.server.may_answer.wait()
            return
        status, document = self.server.answer(self.command, name if plural == "leases" else f"{plural}/{name}", body)
        if self.server.keeps_answers and self.command != "GET":
            # The connection ends without a word.
            return
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def lease_place(folder: Path) -> Iterator[LeasePlace]:
    """While the context lasts this process is in a pod of its namespace."""
    server = LeasePlace()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        with pod_of(folder, server.server_address[1], namespace="mq"):
            yield server
    finally:
        server.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()
