"""How long and how large every measurement is: the whole run in about 45 minutes, or a quick look."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

GB: Final = 10**9


@dataclass(frozen=True, slots=True)
class Plan:
    """Lengths in seconds, sizes in bytes; the median of the rounds counts."""

    rounds: int = 3
    # Windows of one run of a generator; a round's figure is their median.
    windows: int = 2
    window_s: float = 3.0
    # Least load on each server before the first round; it goes on until the cost of a message has stopped falling.
    server_warmup_s: float = 12.0
    # Before the windows of each run: connections and caches for the Go generator, a cold JVM for the Java ones.
    raw_warmup_s: float = 1.5
    java_warmup_s: float = 7.0
    drain_messages: int = 60_000
    # Of a kind: FIFO, delayed.
    kind_messages: int = 20_000
    catch_up_bytes: int = GB + GB // 10
    loopback_s: float = 2.0
    growth_topics: tuple[int, ...] = (1, 100, 10_000)
    growth_connections: tuple[int, ...] = (1, 50, 200)
    growth_log_bytes: tuple[int, int] = (1 * GB, 20 * GB)


FULL: Final = Plan()
QUICK: Final = replace(
    FULL,
    rounds=1,
    windows=1,
    window_s=2.0,
    server_warmup_s=8.0,
    java_warmup_s=5.0,
    drain_messages=15_000,
    kind_messages=4_000,
    catch_up_bytes=300_000_000,
    loopback_s=1.0,
    growth_topics=(1, 100, 1_000),
    growth_log_bytes=(GB // 2, 2 * GB),
)
