"""An environment with the official RocketMQ client, beside ours: its protobuf symbols clash with our stubs."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CLIENT: Final = ROOT / "build" / "official-client"
REQUIREMENTS: Final = ROOT / "demo" / "requirements.txt"


def install_official_client() -> Path:
    """The environment's folder; made once per list of requirements, in some seconds."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    stamp = CLIENT / ".requirements"
    if stamp.exists() and stamp.read_text() == digest:
        return CLIENT
    print("installing the official RocketMQ client into build/official-client", flush=True)
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    if Path(uv).exists():
        subprocess.run([uv, "venv", "-q", "--allow-existing", "--python", sys.executable, str(CLIENT)], check=True)
        install = [uv, "pip", "install", "-q", "--python", str(CLIENT / "bin" / "python")]
    else:
        subprocess.run([sys.executable, "-m", "venv", str(CLIENT)], check=True)
        install = [str(CLIENT / "bin" / "python"), "-m", "pip", "install", "-q"]
    subprocess.run([*install, "--require-hashes", "-r", str(REQUIREMENTS)], check=True)
    stamp.write_text(digest)
    return CLIENT
