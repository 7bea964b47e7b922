"""Runs in a pod of somebody else: knocks at every port of a release, and prints what it was told.

    python3 strangers.py NAME=HOST:PORT:KIND…   [CERTIFICATE KEY]

KIND is `service` (gRPC under certificates), `replication` or `open` (probes). Prints a JSON object: for each NAME the
ways in which its port was open, none if the stranger got nothing. With the last two a certificate of another CA is
shown, too.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys

_LIMIT_S = 10.0
# The beginning of an HTTP/2 connection: the preface and empty SETTINGS.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# A slave's report on 10912: it holds nothing yet, so give it all.
_REPORT = bytes(8)


def main() -> None:
    places = [each for each in sys.argv[1:] if "=" in each]
    pair = [each for each in sys.argv[1:] if "=" not in each]
    found = {}
    for place in places:
        name, _, address = place.partition("=")
        host, port, kind = address.rsplit(":", 2)
        found[name] = _knock(host, int(port), kind, pair)
    sys.stdout.write(json.dumps(found) + "\n")


def _knock(host: str, port: int, kind: str, pair: list[str]) -> list[str]:
    if kind == "replication":
        # Heard for longer than a master waits for a proof.
        return ["bytes without a proof"] if _answer(host, port, _REPORT) else []
    opened = []
    if _answer(host, port, _PREFACE):
        opened.append("a call without TLS")
    if kind == "service":
        if _answer_by_tls(host, port, []):
            opened.append("TLS without a certificate")
        if pair and _answer_by_tls(host, port, pair):
            opened.append("a certificate of another CA")
    return opened


def _answer(host: str, port: int, said: bytes) -> bytes:
    """What comes back; empty: it hung up, or was silent."""
    try:
        with socket.create_connection((host, port), timeout=_LIMIT_S) as connection:
            connection.sendall(said)
            return connection.recv(4096)
    except OSError:
        return b""


def _answer_by_tls(host: str, port: int, pair: list[str]) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if pair:
        context.load_cert_chain(*pair)
    try:
        with (
            socket.create_connection((host, port), timeout=_LIMIT_S) as plain,
            context.wrap_socket(plain) as connection,
        ):
            connection.sendall(_PREFACE)
            return connection.recv(4096)
    except OSError:
        return b""


if __name__ == "__main__":
    main()
