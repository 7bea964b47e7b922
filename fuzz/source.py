"""What every fuzz target takes its input from."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final


class Source:
    """Numbers and bytes taken from an input; zeros behind its end."""

    def __init__(self, data: bytes) -> None:
        self._data: Final = data
        self._pos = 0

    @property
    def is_empty(self) -> bool:
        return self._pos >= len(self._data)

    def byte(self) -> int:
        self._pos += 1
        return self._data[self._pos - 1] if self._pos <= len(self._data) else 0

    def below(self, limit: int) -> int:
        value = self.byte()
        if limit > 256:
            value |= self.byte() << 8
        return value % limit

    def some(self, length: int) -> bytes:
        taken = self._data[self._pos : self._pos + length]
        self._pos += length
        return taken

    def rest(self) -> bytes:
        return self.some(len(self._data))


def any_bytes(count: int, *, seed: int, bytes_max: int) -> Iterator[bytes]:
    """Inputs of a seed, of 20 bytes and more; an even first byte, which says that the input is a program."""
    chance = random.Random(seed)
    for _ in range(count):
        yield bytes([chance.randrange(256) & 0xFE]) + chance.randbytes(chance.randrange(20, bytes_max))


def run_all(run_one: Callable[[bytes], None], inputs: Iterable[bytes]) -> None:
    """A target without atheris; says which input it was before it raises what an input raised."""
    for number, data in enumerate(inputs):
        try:
            run_one(data)
        except Exception:
            sys.stderr.write(f"input {number}: {data.hex()}\n")
            raise
