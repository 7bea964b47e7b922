"""What a broker tells tools about itself, from its parts. The edge of the admin plane."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

import structlog

from tandemmq.broker.failover.controller import Failover
from tandemmq.broker.group_members import PeerProbes, ProbeTarget, probe_targets
from tandemmq.broker.master.group_recovery import GroupRecovery
from tandemmq.broker.master.role import MasterRole
from tandemmq.broker.peer_api.members import failover_state
from tandemmq.broker.runtime_settings import RuntimeSettings
from tandemmq.broker.slave.follower import Follower
from tandemmq.broker.slave.role import SlaveRole
from tandemmq.core.histogram import HistogramReading
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.storage.disk import DiskError, DiskUsage
from tandemmq.core.storage.kept_tail import kept_repairs, kept_tails
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.service.page_cache import resident_bytes
from tandemmq.service.settings import VERSION

if TYPE_CHECKING:
    from tandemmq.broker.parts import BrokerParts

log = structlog.get_logger(__name__)

_NAMED_MAX: Final = 10
"""Problems of one kind, and names in one."""
_TICK_S: Final = 1.0
_TICKS_PER_LOOK: Final = 5


class BrokerReport:
    """Answers what BrokerAdminService asks of the broker as a whole."""

    def __init__(
        self,
        parts: BrokerParts,
        *,
        settings: RuntimeSettings,
        retention_problems: Callable[[], Sequence[str]],
        failover: Failover | None = None,
    ) -> None:
        self._parts = parts
        self._runtime_settings = settings
        self._retention_problems = retention_problems
        self._failover = failover
        self._started_ms = parts.clock.monotonic_ms()
        self._peer_probes = PeerProbes(clock=parts.clock, targets=self._probe_targets)
        self._disk_usage: DiskUsage | None = None
        self._kept_tails: list[str] = []
        self._kept_repairs = (0, 0)

    async def run(self) -> None:
        """Keeps what takes time to find out ready for `status`, until cancelled. Once the store is recovered."""
        while True:
            # A disk that fails is found out by those who write to it.
            with contextlib.suppress(DiskError):
                self._disk_usage, self._kept_tails, self._kept_repairs = await asyncio.to_thread(self._look_at_disk)
            for _ in range(_TICKS_PER_LOOK):
                self._parts.role.second_passed()
                self._look_for_what_was_lost()
                await asyncio.sleep(_TICK_S)

    def _look_for_what_was_lost(self) -> None:
        """A damaged log is no problem any more once it holds the same bytes again. A master of another make proves
        nothing."""
        parts = self._parts
        damage, role = parts.log_damage, parts.role
        if damage is None or parts.log_made_good_ms is not None or not (role.is_serving and role.has_master):
            return
        if role.holds_copies and parts.members.master_metadata() is None:
            return
        if damage.is_made_good(parts.member.history, parts.store.dispatched_offset):
            parts.log_made_good_ms = parts.clock.monotonic_ms()
            log.info("log_made_good", damage=damage.text, end_offset=damage.end_offset)

    def _look_at_disk(self) -> tuple[DiskUsage, list[str], tuple[int, int]]:
        disk = self._parts.disk
        return disk.usage(), [tail.path for tail in kept_tails(disk)], kept_repairs(disk)

    def status(self) -> pb.GetBrokerStatusResponse:
        """The answer of GetBrokerStatus: of a slave with its link, of a master with its slaves'."""
        parts, settings, store, meter = self._parts, self._parts.settings, self._parts.store, self._parts.loop_meter
        puts = parts.observability.put_meter
        status = pb.GetBrokerStatusResponse(
            cluster=parts.identity.cluster,
            broker_name=parts.identity.broker_name,
            broker_id=parts.identity.broker_id,
            role=parts.role_name,
            flush_disk_type=str(settings.flush_disk_type),
            version=VERSION,
            uptime_seconds=(parts.clock.monotonic_ms() - self._started_ms) // 1000,
            min_offset=store.min_offset,
            end_offset=store.end_offset,
            flushed_offset=store.flushed_offset,
            dispatched_offset=store.dispatched_offset,
            waiting_send_count=parts.role.waiting_count,
            resident_bytes=resident_bytes(),
            client_count=len(parts.sessions),
            write_refusal=parts.refusal or store.refusal or "",
            kept_tails=self._kept_tails,
            client_plane_counts=parts.client_plane.counters,
            client_connection_count=parts.client_plane.connection_count,
            event_loop=pb.EventLoopStatus(
                stall_count=meter.stall_count,
                stalled_ms=round(meter.stalled_s * 1_000),
                longest_stall_ms=round(meter.longest_stall_s * 1_000),
            ),
            messages_in_count=sum(topic.messages for topic in puts.topics.values()),
            messages_out_count=sum(pair.messages for pair in parts.client_api.delivery_meter.counts.values()),
            bytes_in_count=sum(topic.bytes for topic in puts.topics.values()),
            send_latency=_latency(histogram.reading() for histogram in puts.send_to_ack_s.values()),
            topic_count=len(parts.topics),
            group_count=len(parts.groups),
            epoch=parts.member.history.last_epoch,
            disk_id=parts.member.disk_id,
            run=parts.member.run,
            delayed=pb.DelayedMessagesStatus(
                waiting_count=parts.delayed.waiting_count,
                next_due_ms=parts.delayed.next_due_ms or 0,
                overdue_ms=parts.delayed.overdue_ms,
                delivered_count=parts.delayed.delivered_count,
                recalled_count=parts.delayed.recalled_count,
            ),
        )
        status.problems.extend(self._problems())
        if self._failover is not None:
            status.failover.CopyFrom(failover_state(self._failover, authority=settings.failover_authority))
        if self._disk_usage is not None:
            status.disk.CopyFrom(self._disk_state(self._disk_usage))
        match parts.role:
            case MasterRole() as master:
                self._add_wait(status, master.recovery)
                self._add_slaves(status, master)
            case SlaveRole() as slave:
                self._add_master(status, slave.follower)
        return status

    def _add_wait(self, status: pb.GetBrokerStatusResponse, recovery: GroupRecovery) -> None:
        waiting = recovery.waiting
        if waiting is None:
            return
        wait = status.start_wait
        wait.reason = waiting.reason
        wait.waited_seconds = recovery.waited_ms // 1_000
        # A broker may have had several disks.
        missing_ids = sorted({memory.broker_id for memory in waiting.missing})
        wait.missing.extend(f"{self._parts.identity.broker_name}:{broker_id}" for broker_id in missing_ids)
        wait.lost_bytes = waiting.lost_bytes
        wait.acceptable = waiting.is_acceptable
        wait.needs_operator = waiting.needs_operator

    @property
    def problem_count(self) -> int:
        """How many things there are to mend."""
        return sum(1 for _ in self._problems())

    def _away_problems(self) -> Iterator[pb.BrokerProblem]:
        """Of a master: members that nobody else tells of, since no NameServer has them."""
        parts, role = self._parts, self._parts.role
        if role.recovery is None or not role.is_serving:
            return
        gone = {one.broker_id for one in role.recovery.away() if parts.members.member_metadata(one.broker_id) is None}
        if gone:
            group = parts.identity.broker_name
            names = ", ".join(f"{group}:{broker_id}" for broker_id in sorted(gone))
            yield pb.BrokerProblem(
                problem=f"misses {names}, which was there before: what comes now is on one disk less",
                remedy="start it, with its disk or with an empty one; if it is gone for good: "
                f"tandemmq broker accept-loss {group}",
            )

    def _lost_problem(self) -> Iterator[pb.BrokerProblem]:
        lost = self._parts.tables.lost_places()
        if not (lost and self._parts.role.is_master):
            return
        count = sum(end - start for start, end in lost.values())
        named = "; ".join(
            f"{start} to {end - 1} of {topic} queue {queue_id}"
            for (topic, queue_id), (start, end) in islice(lost.items(), _NAMED_MAX)
        )
        rest = f", and {len(lost) - _NAMED_MAX} more queues" if len(lost) > _NAMED_MAX else ""
        yield pb.BrokerProblem(
            problem=f"lost at least {count:,} messages that groups have got already, as no log in reach had them when "
            f"it became master: {named}{rest}",
            remedy="`tandemmq restore-kept-tail` brings back what was cut off somewhere; what it does not have, groups "
            "that were behind never get. It is told for a day",
        )

    def _problems(self) -> Iterator[pb.BrokerProblem]:
        damage = self._parts.log_damage
        if damage is not None and self._parts.log_made_good_ms is None:
            yield pb.BrokerProblem(
                problem=f"found its log damaged when it started: {damage.text}",
                remedy="look at the disk, and start the other replicas: it ends once one of them has given back the "
                f"bytes up to {damage.end_offset}. If none has them, it ends with the next start: `tandemmq "
                "restore-kept-tail` lists what was cut off",
            )
        if self._parts.role.serves_reads:
            yield pb.BrokerProblem(
                problem="serves reads, since its group has no master: nothing can be sent to it",
                remedy="start the master; in a group that fails over, if it is lost: tandemmq failover "
                f"{self._parts.identity.broker_name} --to {self._parts.identity.broker_id} --unclean",
            )
        yield from self._away_problems()
        for problem in self._retention_problems():
            yield pb.BrokerProblem(
                problem=problem,
                remedy="`tandemmq doctor` shows how much room there is where, `tandemmq group list` who reads behind",
            )
        for file in self._parts.tables.damaged:
            yield pb.BrokerProblem(
                problem=f"cannot read its config/{file.value}",
                remedy="start the other replicas of its group, or restore the file from a backup; do not remove it",
            )
        for file, kept in self._parts.tables.kept.items():
            # Progress that is ahead of the master's is no fault of either.
            if kept and file in (MetadataFile.TOPICS, MetadataFile.SUBSCRIPTION_GROUPS):
                rest = f", and {len(kept) - _NAMED_MAX} more" if len(kept) > _NAMED_MAX else ""
                yield pb.BrokerProblem(
                    problem=f"holds what its master lacks and nobody deleted: {'; '.join(kept[:_NAMED_MAX])}{rest}",
                    remedy="make them again on the master; then delete there what is not wanted",
                )
        yield from self._lost_problem()
        skipped = self._parts.leases.skipped_backlogs()
        for one in skipped[:_NAMED_MAX]:
            yield pb.BrokerProblem(
                problem=f"group {one.group} began at the newest message of {one.topic}: "
                f"{one.message_count:,} older ones are not delivered to it",
                # Whatever a client calls its group is one word of a shell's.
                remedy=f"if it should have them: tandemmq group reset {quote(one.group)} {quote(one.topic)} "
                "--to earliest; consumeFromEarliest=true lets new groups begin at the oldest message",
            )
        if len(skipped) > _NAMED_MAX:
            yield pb.BrokerProblem(
                problem=f"{len(skipped) - _NAMED_MAX} more groups began at the newest message beside older ones",
                remedy="consumeFromEarliest=true lets new groups begin at the oldest message",
            )

    def _add_slaves(self, status: pb.GetBrokerStatusResponse, master: MasterRole) -> None:
        now_ms = self._parts.clock.monotonic_ms()
        needed = self._parts.settings.master_options().needed_slaves
        if self._failover is not None and self._failover.acts:
            needed = max(needed, len(self._failover.required))
        status.needed_slave_count = needed
        status.put_counts.update(master.write_path.put_counts)
        status.refused_counts.update(master.write_path.refused_counts)
        status.ack_latency.CopyFrom(_latency([self._parts.observability.put_meter.ack_latency_s.reading()]))
        for slave in master.slaves():
            traffic = master.ha.traffic(slave.link)
            status.slaves.add(
                peer=slave.peer,
                broker_id=-1 if slave.broker_id is None else slave.broker_id,
                acked_offset=slave.acked_offset,
                lag_bytes=slave.lag_bytes,
                in_sync=slave.in_sync,
                verified=slave.verified,
                lag_seconds=master.lag_age.lag_s(slave.acked_offset),
                connected_seconds=(now_ms - traffic.connected_at_ms) // 1_000 if traffic is not None else 0,
                sent_bytes=traffic.sent_bytes if traffic is not None else 0,
                silent_ms=traffic.silent_ms if traffic is not None else None,
            )
        for departure in master.ha.departures:
            status.slave_departures.add(
                peer=departure.peer,
                broker_id=-1 if departure.broker_id is None else departure.broker_id,
                wall_clock_ms=departure.at_wall_ms,
                reason=departure.reason,
                lag_bytes=departure.lag_bytes,
            )

    def _add_master(self, status: pb.GetBrokerStatusResponse, follower: Follower) -> None:
        link = status.master_link
        link.address = follower.master_address
        link.state = "refusing" if follower.is_refusing else follower.state
        link.lag_bytes = follower.lag_bytes
        if follower.is_refusing:
            link.problem, link.remedy = follower.problem, follower.remedy
        silent_ms = follower.silent_ms
        if silent_ms is not None:
            link.silent_ms = silent_ms
        link.master_end_offset = self._parts.store.end_offset + follower.lag_bytes

    async def probe_peers(self) -> pb.ProbePeersResponse:
        """The answer of ProbePeers: whom this broker reaches, and its disk."""
        problems = [
            f"NameServer {link.address}: {link.error or 'no route stream yet'}"
            for link in self._parts.links.links
            if not link.is_watching
        ]
        probes = await self._peer_probes.run()
        usage = await asyncio.to_thread(self._parts.disk.usage)
        return pb.ProbePeersResponse(
            probes=[
                pb.PeerProbe(
                    peer=probe.target.peer,
                    plane=probe.target.plane,
                    address=probe.target.address,
                    resolved_ip=probe.resolved_ip,
                    reachable=not probe.error,
                    connect_ms=probe.connect_ms,
                    error=probe.error,
                )
                for probe in probes
            ],
            wall_clock_ms=self._parts.clock.wall_ms(),
            disk=self._disk_state(usage),
            problems=problems,
        )

    def _probe_targets(self) -> list[ProbeTarget]:
        parts = self._parts
        return probe_targets(parts.identity, name_servers=parts.settings.name_servers, brokers=parts.links.view.brokers)

    def _disk_state(self, usage: DiskUsage) -> pb.DiskState:
        return pb.DiskState(
            path=str(Path(self._parts.settings.store_path_root_dir).absolute()),
            total_bytes=usage.total_bytes,
            free_bytes=usage.total_bytes - usage.used_bytes,
            used_ratio=usage.used_ratio,
            warning_ratio=self._runtime_settings.current.disk_space_warning_level_ratio,
            next_file_bytes=self._parts.settings.mapped_file_size_commit_log,
            kept_repairs_count=self._kept_repairs[0],
            kept_repairs_bytes=self._kept_repairs[1],
        )


def _latency(readings: Iterable[HistogramReading]) -> pb.LatencyCounts:
    """The sum of histograms with the same bounds."""
    parts = list(readings)
    return pb.LatencyCounts(
        bounds_s=parts[0].bounds,
        counts=[sum(counts) for counts in zip(*(part.counts for part in parts), strict=True)],
        sum_s=sum(part.total for part in parts),
    )
