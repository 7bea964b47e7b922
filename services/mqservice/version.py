"""The version this process was built as."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

__all__ = ["VERSION"]

# One distribution holds all services, so one number names what runs (see pyproject.toml).
VERSION: Final = version("tandemmq")
