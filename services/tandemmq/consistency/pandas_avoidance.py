"""Keeps pandas out of a run: it would be loaded only to ask whether what a run has is of pandas, for 2 s of CPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

import pyarrow as pa
from py4j import protocol

__all__ = ["keep_pandas_out"]

_PANDAS: Final = "pandas"


class _NoPandas(MetaPathFinder):
    """As if it were not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises ModuleNotFoundError for pandas; whoever comes next finds the rest."""
        if fullname == _PANDAS:
            raise ModuleNotFoundError(fullname)
        return None


def keep_pandas_out() -> None:
    """For a process in which nothing else uses pandas; one that has loaded it keeps it. To be called early."""
    # Arguments of the JVM's are strings here. Asked whether they are numpy's, pyspark imports its test utilities, and
    # these import pandas.
    protocol.INPUT_CONVERTER[:] = [
        converter for converter in protocol.INPUT_CONVERTER if not type(converter).__name__.startswith("Numpy")
    ]
    if _PANDAS in sys.modules:
        return
    # Pyarrow asks of every list whether it is of pandas, but whether there is a pandas only once: now.
    refusal = _NoPandas()
    sys.meta_path.insert(0, refusal)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(refusal)
