"""Three kinds of offset, three types: mixing them is a type error and costs nothing at run time."""

from __future__ import annotations

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Absolute byte position in the CommitLog."""

QueueOffset = NewType("QueueOffset", int)
"""Number of an entry in a ConsumeQueue; the first message of a queue has 0."""

ConsumerOffset = NewType("ConsumerOffset", int)
"""Progress of a consumer group in one queue: every message below it is acknowledged."""
