"""Compiles every .proto below proto/ into build/proto/, which git ignores.

Runs in two ways: as a hatchling hook when a wheel is built or the project is installed, and as a script
(`python proto/build_hook.py`, what `make proto` does) to refresh the stubs of an editable install in place.
A wheel carries the stubs as top-level `apache/...` and `tandemmq/...`: the import path is the proto path, so no
import is ever rewritten. An editable install reads build/proto itself and must not get a copy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def compile_protos(root: Path) -> Path:
    """Compiles all protos with type stubs; returns the folder they were written to."""
    from grpc_tools import protoc

    source, target = root / "proto", root / "build" / "proto"
    target.mkdir(parents=True, exist_ok=True)
    protos = sorted(str(path.relative_to(source)) for path in source.rglob("*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"-I{source}",
        f"-I{well_known}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        f"--grpc_python_out={target}",
        *protos,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("proto: compilation failed, see the lines above")
    for folder in {target / Path(p).parent for p in protos}:
        (folder / "py.typed").touch()
    return target


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script, outside a build
    pass
else:

    class ProtoBuildHook(BuildHookInterface[Any]):
        """Puts freshly compiled stubs into the wheel, or beside an editable install."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            target = compile_protos(Path(self.root))
            if version != "editable":
                for package in sorted(path for path in target.iterdir() if path.is_dir()):
                    build_data["force_include"][str(package)] = package.name


if __name__ == "__main__":
    sys.stdout.write(f"stubs in {compile_protos(ROOT).relative_to(ROOT)}\n")
