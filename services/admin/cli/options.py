"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DataOption", "JsonOption", "NamesrvOption", "TopicArgument"]

NamesrvOption = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        "-n",
        metavar="HOST:PORT;…",
        help="NameServers of the cluster. Default: --data, else $TANDEMMQ_NAMESRV_ADDR or $NAMESRV_ADDR, else the "
        "cluster that runs in ./data, else 127.0.0.1:9876.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Data folder of a cluster started with `tandemmq up`."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]
