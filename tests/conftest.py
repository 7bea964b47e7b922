"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says what else the machine does.
settings.register_profile("any_machine", deadline=None)
settings.load_profile("any_machine")
