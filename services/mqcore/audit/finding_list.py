"""Findings of one part of the log, cut where nobody reads on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from mqcore.audit.findings import Finding

__all__ = ["FINDINGS_MAX", "FindingList"]

FINDINGS_MAX: Final = 1000


class FindingList:
    """Keeps the first FINDINGS_MAX findings, counts the others, and says so in one more."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._first_left_out: Finding | None = None
        self._left_out = 0
        self._messages_left_out = 0

    def extend(self, findings: Iterable[Finding]) -> None:
        """Takes them in order."""
        for finding in findings:
            if len(self._kept) < FINDINGS_MAX:
                self._kept.append(finding)
                continue
            self._first_left_out = self._first_left_out or finding
            self._left_out += 1
            self._messages_left_out += finding.messages

    def taken(self) -> tuple[Finding, ...]:
        """Those kept, and the one that stands for the rest."""
        if self._first_left_out is None:
            return tuple(self._kept)
        rest = replace(
            self._first_left_out,
            detail=f"and {self._left_out} more findings in this range, the first: {self._first_left_out.detail}",
            messages=self._messages_left_out,
        )
        return (*self._kept, rest)
