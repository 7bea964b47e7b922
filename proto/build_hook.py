"""Compiles every .proto below proto/ into build/proto/, which git ignores.

Runs in two ways: as a hatchling hook when a wheel is built or the project is installed, and as a script
(`python proto/build_hook.py`, what `make proto` does) to refresh the stubs of an editable install in place.
Stubs are in `tandemmq.proto`, whatever a proto's package is: `tandemmq.proto.rocketmq.v2` of apache/rocketmq/v2,
`tandemmq.proto.broker.v1` of tandemmq/broker/v1. protoc makes Python's names of the protos' paths, which are theirs
on the wire and stay; so what it wrote is moved, and its imports with it. `tandemmq` is a namespace package: a
wheel has all of it in one folder, and an editable install, which must not get a copy, reads build/proto itself.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STUBS = "tandemmq.proto"


def compile_protos(root: Path) -> Path:
    """Compiles all protos with type stubs; returns the folder they were written to."""
    from grpc_tools import protoc

    source, target = root / "proto", root / "build" / "proto"
    protos = sorted(str(path.relative_to(source)) for path in source.rglob("*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    target.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="protoc-", dir=target.parent) as written:
        arguments = [
            "protoc",
            f"-I{source}",
            f"-I{well_known}",
            f"--python_out={written}",
            f"--pyi_out={written}",
            f"--grpc_python_out={written}",
            *protos,
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit("proto: compilation failed, see the lines above")
        # What an earlier layout or a proto that is gone left there would be found too.
        shutil.rmtree(target, ignore_errors=True)
        _move_stubs(Path(written), target, {Path(proto).parts[0] for proto in protos})
    return target


def _move_stubs(written: Path, target: Path, roots: set[str]) -> None:
    """Into `STUBS`, without the first folder of their path. Their own names are in imports and in one string."""
    name = re.compile(rf"^(from |_builder\.Build.*')(?:{'|'.join(sorted(roots))})(?=\.)", re.MULTILINE)
    for path in written.rglob("*.py*"):
        moved = target.joinpath(*STUBS.split("."), *path.relative_to(written).parts[1:])
        moved.parent.mkdir(parents=True, exist_ok=True)
        moved.write_text(name.sub(rf"\1{STUBS}", path.read_text()))
        (moved.parent / "py.typed").touch()


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
