"""Makes one list of what several checks found: nothing twice, what all replicas share once, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from mqcore.audit.comparison import without_repeats
from mqcore.audit.findings import Finding, FindingKind, Severity

__all__ = ["by_weight", "collate"]

_WEIGHT: Final = {severity: place for place, severity in enumerate(Severity)}
_IN_PIECES: Final = frozenset(
    {FindingKind.ZEROED, FindingKind.RECORDS_SHIFTED, FindingKind.SEGMENT_MISSING, FindingKind.SEGMENT_SIZE}
)
"""Found in pieces where a task ended, though it is one thing."""


def collate(compared: Iterable[Finding], checked: Iterable[Finding], *, broker_ids: frozenset[int]) -> list[Finding]:
    """Findings of one group.

    `compared` come from looking at several replicas, `checked` from looking at one of them alone. Where both speak of
    the same bytes of the same replica, the former is kept.
    """
    known = _joined(_without_doubles(compared))
    rest = without_repeats(known, _without_doubles(checked))[len(known) :]
    return sorted([*known, *_shared_once(_joined(rest), broker_ids)], key=by_weight)


def by_weight(finding: Finding) -> tuple[int, str, int, int, str]:
    """Sort key: the worst first, then by place."""
    return (
        _WEIGHT[finding.severity],
        finding.group,
        finding.start_offset if finding.start_offset is not None else -1,
        finding.broker_id if finding.broker_id is not None else -1,
        finding.kind,
    )


def _without_doubles(findings: Iterable[Finding]) -> list[Finding]:
    """Two tasks may both see the record that lies where they meet."""
    return list(dict.fromkeys(findings))


def _joined(findings: Sequence[Finding]) -> list[Finding]:
    """Neighbours of one kind on one replica as one finding."""
    whole: list[Finding] = []
    pieces = sorted(
        filter(_is_piece, findings),
        key=lambda finding: (finding.kind, finding.broker_id or 0, finding.start_offset or 0),
    )
    for piece in pieces:
        last = whole[-1] if whole else None
        if (
            last is not None
            and (last.kind, last.broker_id, last.verdict, last.source_broker_id)
            == (piece.kind, piece.broker_id, piece.verdict, piece.source_broker_id)
            and last.end_offset == piece.start_offset
        ):
            whole[-1] = replace(
                last,
                end_offset=piece.end_offset,
                messages=last.messages + piece.messages,
                last_message_id=piece.last_message_id or piece.message_id or last.last_message_id,
            )
        else:
            whole.append(piece)
    return [finding for finding in findings if not _is_piece(finding)] + whole


def _is_piece(finding: Finding) -> bool:
    return finding.kind in _IN_PIECES and finding.start_offset is not None


def _shared_once(findings: Sequence[Finding], broker_ids: frozenset[int]) -> list[Finding]:
    """What every replica has alike is one finding that names none of them."""
    if len(broker_ids) < 2:
        return list(findings)
    sharers: dict[Finding, set[int]] = {}
    for finding in findings:
        if finding.broker_id is not None:
            sharers.setdefault(_anonymous(finding), set()).add(finding.broker_id)
    shared = {finding for finding, found in sharers.items() if found == broker_ids}
    rest = [finding for finding in findings if finding.broker_id is None or _anonymous(finding) not in shared]
    return rest + [_on_all(finding, len(broker_ids)) for finding in shared]


def _anonymous(finding: Finding) -> Finding:
    return replace(finding, broker_id=None, source_broker_id=None)


def _on_all(finding: Finding, count: int) -> Finding:
    return replace(finding, detail=f"{finding.detail}; alike on all {count} replicas", verdict=finding.verdict)
