"""What one TCP stream over loopback carries here: the ceiling of replication on one machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from typing import Final

from processes import MeasurementFailed, free_port

CHUNK_BYTES: Final = 1 << 20
START_LIMIT_S: Final = 5.0
# What takes iperf3's place: a process that reads into one buffer and drops what it read.
_SINK: Final = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    print("ready", flush=True)
    connection, buffer = server.accept()[0], memoryview(bytearray(1 << 20))
    while connection.recv_into(buffer):
        pass
"""


def _install_iperf3() -> bool:
    if shutil.which("iperf3"):
        return True
    if os.getuid() != 0 or not shutil.which("apt-get"):
        return False
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "iperf3"]):
        subprocess.run(command, capture_output=True, env=environment, check=False)
        if shutil.which("iperf3"):
            return True
    return False


class Loopback:
    """Measures with iperf3; without it, with a copy between two sockets, which `tool` says."""

    def __init__(self) -> None:
        self.tool = "iperf3" if _install_iperf3() else "socket copy"

    def megabytes_per_s(self, seconds: float) -> float:
        """One stream for `seconds`, in 10^6 bytes per second as the receiver counts."""
        return self._iperf3(seconds) if self.tool == "iperf3" else self._socket_copy(seconds)

    @staticmethod
    def _iperf3(seconds: float) -> float:
        port = str(free_port())
        server = subprocess.Popen(
            ["iperf3", "-s", "-1", "-p", port, "--forceflush"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if b"listening" in line:
                    break
            client = subprocess.run(
                ["iperf3", "-c", "127.0.0.1", "-p", port, "-t", f"{max(1, round(seconds))}", "-J"],
                capture_output=True,
                text=True,
                timeout=seconds + 30,
                check=False,
            )
            if client.returncode != 0:
                raise MeasurementFailed(f"iperf3: {client.stdout[-500:]}{client.stderr[-500:]}")
            return float(json.loads(client.stdout)["end"]["sum_received"]["bits_per_second"]) / 8e6
        finally:
            server.kill()
            server.communicate()

    @staticmethod
    def _socket_copy(seconds: float) -> float:
        port = free_port()
        sink = subprocess.Popen([sys.executable, "-c", _SINK, str(port)], stdout=subprocess.PIPE)
        try:
            assert sink.stdout is not None
            sink.stdout.readline()
            sent, chunk = 0, bytes(CHUNK_BYTES)
            with socket.create_connection(("127.0.0.1", port), timeout=START_LIMIT_S) as connection:
                began = time.perf_counter()
                while time.perf_counter() - began < seconds:
                    connection.sendall(chunk)
                    sent += CHUNK_BYTES
                elapsed = time.perf_counter() - began
            return sent / 1e6 / elapsed
        finally:
            sink.kill()
            sink.communicate()
