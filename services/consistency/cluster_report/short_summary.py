"""A run's summary, cut to what fits into a ConfigMap.

An object of Kubernetes holds 1 MiB, and every reader of the ConfigMap gets all of it. So a summary gives up, in this
order, what can be had elsewhere: findings beyond the first fifty, the pictures of sound groups, their replicas, the
sound groups themselves, then all groups and findings. Outcome, counts and figures stay; a note tells what went.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from mqcore.audit.run_summary import GroupSummary, Outcome, RunSummary, Tier

__all__ = ["RUNS_KEPT", "kept_runs", "short_summary", "shortened"]

FINDINGS_MAX: Final = 50
RUNS_KEPT: Final = 8
# Hourly runs of one tier would push the weekly one of another out.
_KEPT_OF_EACH_TIER: Final = 2
_SOUND: Final = frozenset({Outcome.EQUAL, Outcome.SKIPPED})

_Cut = Callable[[RunSummary], RunSummary]


def short_summary(summary: RunSummary, *, bytes_max: int) -> str:
    """JSON of at most `bytes_max` bytes as far as the bare figures of a run fit into it."""
    text = ""
    for candidate in _candidates(summary):
        text = json.dumps(candidate.to_json(), separators=(",", ":"))
        if len(text) <= bytes_max:
            break
    return text


def shortened(text: str, *, bytes_max: int) -> str | None:
    """A stored summary cut down further; None if it is none that this version reads."""
    if len(text.encode()) <= bytes_max:
        return text
    try:
        return short_summary(RunSummary.from_json(json.loads(text)), bytes_max=bytes_max)
    except (ValueError, AttributeError):
        return None


def kept_runs(tiers: Mapping[str, Tier | None]) -> frozenset[str]:
    """Of runs by id those to keep: the newest, and the newest of each tier."""
    newest_first = sorted(tiers, reverse=True)
    kept = set(newest_first[:RUNS_KEPT])
    for tier in Tier:
        kept |= set([run_id for run_id in newest_first if tiers[run_id] is tier][:_KEPT_OF_EACH_TIER])
    return frozenset(kept)


def _candidates(summary: RunSummary) -> Iterator[RunSummary]:
    cuts: tuple[_Cut, ...] = (_few_findings, _no_sound_maps, _no_sound_replicas, _no_sound_groups, _nothing_but_figures)
    for cut in cuts:
        summary = cut(summary)
        yield summary


def _few_findings(summary: RunSummary) -> RunSummary:
    return replace(summary, findings=summary.findings[:FINDINGS_MAX])


def _no_sound_maps(summary: RunSummary) -> RunSummary:
    return _sound_groups_as(summary, lambda group: replace(group, extent_map=""))


def _no_sound_replicas(summary: RunSummary) -> RunSummary:
    return _sound_groups_as(summary, lambda group: replace(group, replicas=()))


def _no_sound_groups(summary: RunSummary) -> RunSummary:
    kept = tuple(group for group in summary.groups if group.outcome not in _SOUND)
    left_out = len(summary.groups) - len(kept)
    return _noted(replace(summary, groups=kept), f"{left_out:,} equal or skipped groups are left out here.")


def _nothing_but_figures(summary: RunSummary) -> RunSummary:
    return _noted(
        replace(summary, groups=(), findings=()),
        "Groups and findings are left out here; the report of the run has them.",
    )


def _sound_groups_as(summary: RunSummary, change: Callable[[GroupSummary], GroupSummary]) -> RunSummary:
    groups = tuple(change(group) if group.outcome in _SOUND else group for group in summary.groups)
    return replace(summary, groups=groups)


def _noted(summary: RunSummary, note: str) -> RunSummary:
    return replace(summary, notes=(*summary.notes, note))
