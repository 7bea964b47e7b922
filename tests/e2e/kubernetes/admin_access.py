"""Who may what through the admin, once tokens are set: callers of another pod, and of a port-forward."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from e2e.kubernetes.client_pod import ClientPod
from e2e.kubernetes.cluster import say
from e2e.kubernetes.installation import RELEASE, Installation
from e2e.kubernetes.port_forward import admin_port, answer_of
from e2e.kubernetes.report import Report

SECRET: Final = "admin-tokens"
OPERATOR: Final = "operators-token-of-the-test"
VIEWER: Final = "viewers-token-of-the-test"
WRONG: Final = "nobodys-token-of-the-test"
VALUES: Final = (
    f"admin.token.existingSecret={SECRET}",
    f"admin.viewerToken.existingSecret={SECRET}",
    # Whoever may only forward a port looks; changes need the operators' token.
    "admin.settings.localRole=viewer",
    # Where policies are enforced, nobody gets that far otherwise.
    'networkPolicy.admin.from=[{"podSelector":{"matchLabels":{"tandemmq.io/test-client":"yes"}}}]',
)
TOPIC: Final = "by-operator"
REFUSED_TOPIC: Final = "by-viewer"
# What only viewers see, what monitoring sees while no token is set, and the console.
READ: Final = (
    *("/api/v1/topics", "/api/v1/topics/first/messages", "/api/v1/groups", "/api/v1/brokers/broker-a:0/settings"),
    *("/api/v1/cluster", "/api/v1/findings", "/metrics", "/", "/replication"),
)
# Arguments: a URL and a JSON list of [method, path, token]. Prints their statuses; redirects are answers.
_PROGRAM: Final = """
import json, sys, urllib.error, urllib.request
class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments):
        return None
opener = urllib.request.build_opener(Stay)
def ask(method, path, token):
    request = urllib.request.Request(sys.argv[1] + path, data=b"{}" if method == "PUT" else None, method=method)
    request.add_header("content-type", "application/json")
    if token:
        request.add_header("authorization", "Bearer " + token)
    try:
        with opener.open(request, timeout=20) as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
print(json.dumps([ask(*each) for each in json.loads(sys.argv[2])]))
"""


def close_admin(installation: Installation, report: Report, client: ClientPod) -> None:
    """Tokens are set on a release that runs; rows for who is refused what. Leaves them set."""
    before = installation.broker_identities()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": SECRET,
            "namespace": installation.namespace,
            "labels": {"tandemmq.io/test-client": "yes"},
        },
        "stringData": {"token": OPERATOR, "viewerToken": VIEWER},
    }
    installation.cluster.apply([secret])
    say("helm upgrade --wait: tokens of the admin")
    installation.upgrade(*VALUES)
    visit = _Visit(installation, report, client)
    restarted = sum(before.get(pod) != identity for pod, identity in installation.broker_identities().items())
    visit.check("brokers restarted when tokens are set", restarted, "pods", "== 0")
    _look(visit)
    _change(visit)
    _forward(visit)
    _audit(visit)


class _Visit:
    """The caller in another pod, and where what it sees is reported."""

    def __init__(self, installation: Installation, report: Report, client: ClientPod) -> None:
        self.installation = installation
        self._report = report
        self._client = client
        self._url = f"http://{RELEASE}-admin.{installation.namespace}.svc.cluster.local:8080"

    def ask(self, token: str, *requests: tuple[str, str]) -> list[tuple[int, str]]:
        """Statuses and texts of the answers."""
        asked = json.dumps([(method, path, token) for method, path in requests])
        return [(status, text) for status, text in json.loads(self._client.python(_PROGRAM, self._url, asked))]

    def statuses(self, token: str, method: str, *paths: str) -> dict[str, int]:
        """Status by path."""
        answers = self.ask(token, *((method, path) for path in paths))
        return {path: status for path, (status, _) in zip(paths, answers, strict=True)}

    def role(self, token: str) -> str:
        """Who the service takes the bearer for."""
        ((status, text),) = self.ask(token, ("GET", "/api/v1/caller"))
        return str(json.loads(text).get("role")) if status == 200 else f"nobody ({status})"

    def holders(self, topic: str) -> int:
        """Brokers that have a topic, as they say themselves."""
        found = json.loads(self.installation.tandemmq("topic", "list", "--search", topic, "-o", "json"))["items"]
        return sum(len(each["brokers"]) for each in found if each["name"] == topic)

    def check(self, what: str, value: float, unit: str, target: str, note: str = "") -> None:
        """A row of this preset's admin."""
        self._report.check(f"{self.installation.preset}: admin with tokens: {what}", value, unit, target, note)


def _look(visit: _Visit) -> None:
    """Probes are open to all; everything else is read with a token that is right."""
    probes = visit.statuses("", "GET", "/healthz", "/readyz")
    visit.check("probes that need no token", _count(probes, 200), "paths", f"== {len(probes)}", str(probes))
    for who, token in (("without a token", ""), ("with a wrong token", WRONG)):
        found = visit.statuses(token, "GET", *READ)
        visit.check(f"paths refused to another pod {who}", _count(found, 401), "paths", f"== {len(READ)}", str(found))
    for name, token in (("viewer", VIEWER), ("operator", OPERATOR)):
        found = visit.statuses(token, "GET", *READ)
        visit.check(f"paths a {name}'s token reads", _count(found, 200), "paths", f"== {len(READ)}", str(found))
        role = visit.role(token)
        visit.check(f"the {name}'s token makes its bearer that", int(role == name), "", "== 1", role)


def _change(visit: _Visit) -> None:
    """Nobody but the operators' token changes anything; the brokers are asked."""
    path = f"/api/v1/topics/{REFUSED_TOPIC}"
    for who, token, status in (("no token", "", 401), ("a wrong token", WRONG, 401), ("a viewer's token", VIEWER, 403)):
        found = visit.statuses(token, "PUT", path)
        visit.check(f"status of a change with {who}", found[path], "", f"== {status}")
    visit.check("brokers with a topic that was refused", visit.holders(REFUSED_TOPIC), "brokers", "== 0")
    path = f"/api/v1/topics/{TOPIC}"
    ((status, text),) = visit.ask(OPERATOR, ("PUT", path))
    visit.check("status of a change with an operator's token", status, "", "== 200", text)
    masters = len(visit.installation.pods("broker"))
    visit.check("brokers with the topic it made", visit.holders(TOPIC), "brokers", f"== {masters}")


def _forward(visit: _Visit) -> None:
    """A port-forward is what localRole says."""
    with admin_port(visit.installation) as port:
        looked = answer_of(port, "GET", "/api/v1/topics")
        changed = answer_of(port, "PUT", f"/api/v1/topics/{REFUSED_TOPIC}", "{}")
    visit.check("status of a look by port-forward, localRole viewer", looked, "", "== 200")
    visit.check("status of a change by port-forward, localRole viewer", changed, "", "== 403")
    visit.check("brokers with what was refused there", visit.holders(REFUSED_TOPIC), "brokers", "== 0")


def _audit(visit: _Visit) -> None:
    """What was done and what was refused, with whose token, is in the pod's log; tokens are not."""
    namespace = visit.installation.namespace
    log = visit.installation.cluster.kubectl("logs", "-n", namespace, f"deploy/{RELEASE}-admin")
    lines = [line for line in map(_line, log.splitlines()) if line.get("event") == "operator_change"]
    told = "\n".join(map(str, lines))

    def count(who: str, topic: str, outcome: str) -> int:
        return sum(
            line["who"] == who and topic in line["subject"] and line["outcome"].startswith(outcome) for line in lines
        )

    visit.check("operator_change in the log, done", count("adminToken", TOPIC, "done"), "lines", "== 1", told)
    visit.check(
        "operator_change in the log, refused to a viewer",
        count("viewerToken", REFUSED_TOPIC, "refused"),
        "lines",
        "== 1",
        told,
    )
    visit.check(
        "operator_change in the log, refused to a port-forward",
        count("local", REFUSED_TOPIC, "refused"),
        "lines",
        "== 1",
        told,
    )
    visit.check("tokens in the log", sum(token in log for token in (OPERATOR, VIEWER, WRONG)), "tokens", "== 0")


def _line(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _count(statuses: Mapping[str, int], wanted: int) -> int:
    return sum(status == wanted for status in statuses.values())
