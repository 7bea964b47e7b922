"""The images of the tests: built from the checkout as it is, put onto every node, once per state of their sources."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from typing import Final

from tools.images import BASE, BY_NAME, KUBE_SCRIPTS, Buildah, made

from e2e.kubernetes.cluster import ROOT, Cluster

SERVICES: Final = ("nameserver", "broker", "admin")
# Spark: a gigabyte on each node, only for the part that runs it.
CONSISTENCY: Final = "consistency"
# Where images are "from": nodes hold them already, nothing is pulled.
REGISTRY: Final = "localhost"
# What an image is made of.
_SOURCES: Final = (
    *("services", "proto", "pyproject.toml", "uv.lock", "README.md", "LICENSE", ".dockerignore"),
    *("tools/image_install.sh", "tools/image_requirements.txt", "tools/image_strip.py", "tools/compile.py"),
)
_CLIENT_SOURCES: Final = ("demo/requirements.txt", "tests/e2e/kubernetes/Dockerfile")
_STAMP: Final = ROOT / "build" / "e2e-images.json"


class Images:
    """The tags that one run uses."""

    def __init__(self, tag: str, client: str) -> None:
        self.tag = tag
        self.client = client

    @property
    def values(self) -> dict[str, str]:
        """The chart's values that name them."""
        return {"image.registry": REGISTRY, "image.tag": self.tag}


def build_images(cluster: Cluster, *, with_consistency: bool = False, compiled: bool = True) -> Images:
    """Builds what the cluster does not have yet. The tag is a digest of the sources: equal sources are built once."""
    client_tag = f"e2e-{_digest(_CLIENT_SOURCES)}"
    images = Images(
        f"e2e-{_digest(_SOURCES)}{'' if compiled else '-plain'}", f"{REGISTRY}/tandemmq/e2e-client:{client_tag}"
    )
    wanted = {
        f"{REGISTRY}/tandemmq/{service}:{images.tag}": (replace(BY_NAME[service], compiled=compiled), images.tag)
        for service in (*SERVICES, *([CONSISTENCY] if with_consistency else []))
    }
    wanted[images.client] = BY_NAME["client"], client_tag
    known = set(cluster.images())
    for name, (image, tag) in wanted.items():
        if name not in known:
            # As `make images` does, with what it looks for inside: an image that it refuses fails here as well.
            builder = Buildah(KUBE_SCRIPTS, BASE)
            made(builder, image, tag, base=builder.pinned(BASE), load=True)
    _STAMP.parent.mkdir(exist_ok=True)
    _STAMP.write_text(json.dumps({"images": sorted(wanted)}, indent=2) + "\n")
    return images


def _digest(sources: tuple[str, ...]) -> str:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *sources],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    digest = hashlib.sha256()
    for name in sorted(listed):
        path = ROOT / name
        if path.is_file():
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
