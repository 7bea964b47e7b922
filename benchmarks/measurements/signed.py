"""Synchronous sends of a user who signs each call, over TLS: beside the same without either, and beside RocketMQ with
TLS and ACL 2.0.

Each contender is a group of its own, for whom it lets in is a setting. Our user is an ordinary one with a policy for
the topic; RocketMQ's is the super user that it begins with, whom it asks for no policy. Both have the same certificate.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from load_generators import BODY_BYTES, Generators, Target, Window
from measurements.rounds import Case, Contender, Rounds, alone
from measurements.side_by_side import OURS, SEND_TOPIC, WARM_UP_INFLIGHT, until_steady
from peer.installation import Installation
from peer.remoting import Credentials
from peer.rocketmq import ProxyMode, RocketPair
from plan import Plan
from processes import MeasurementFailed
from report import Row
from support.guarded_broker import guarded_settings
from system_under_test import SystemUnderTest, TandemPair, make_certificate, tls_settings

OURS_SIGNED: Final = "tandemmq_signed"
CASE: Final = "signed_send_32"
JUDGED: Final = ("send_cpu_tls_signed", "send_cpu_tls_signed_vs_rocketmq")
_USER: Final = Credentials("bench", "bench-secret")
_MAY_SEND: Final = {
    "subject": f"User:{_USER.access_key}",
    "policies": [{"entries": [{"resource": f"Topic:{SEND_TOPIC}", "actions": ["Pub"]}]}],
}


def measure(
    folder: Path,
    installation: Installation,
    generators: Generators,
    plan: Plan,
    rounds: Rounds,
    say: Callable[[str], None],
) -> list[Row]:
    """CPU of all processes a message passes, 32 sends in flight."""
    shutil.rmtree(folder, ignore_errors=True)
    make_certificate(folder)
    guarded = guarded_settings(folder / "auth", {_USER.access_key: _USER.secret_key}, acls=[_MAY_SEND])
    plain = TandemPair(folder / OURS)
    signed = TandemPair(folder / OURS_SIGNED, label=OURS_SIGNED, settings=tls_settings(folder) | guarded)
    theirs = RocketPair(
        folder / "rocketmq",
        installation,
        ProxyMode.LOCAL,
        certificate=(folder / "tls.crt", folder / "tls.key"),
        credentials=_USER,
    )
    systems: tuple[SystemUnderTest, ...] = (plain, signed, theirs)

    def send(system: SystemUnderTest, inflight: int, *, is_signed: bool = True) -> Callable[[], list[Window]]:
        options = {"topic": SEND_TOPIC, "size": BODY_BYTES, "inflight": inflight, "warmup": plan.raw_warmup_s}
        options |= {"windows": plan.windows, "seconds": plan.window_s}
        if system is not plain:
            options |= {"tls": "true"}
            options |= {"access-key": _USER.access_key, "secret-key": _USER.secret_key} if is_signed else {}
        return lambda: generators.raw(Target(system.label, system.endpoint, system.pids()), "send", **options)

    try:
        for system in systems:
            say(f"starting {system.label}")
            system.start()
            system.create_topic(SEND_TOPIC)
        for system in systems:
            with alone(system, systems):
                if system is not plain:
                    _refuses(send(system, 1, is_signed=False), system.label)
                until_steady(plan, say, f"warming up {system.label}", send(system, WARM_UP_INFLIGHT))
        contenders = [Contender(system.label, system, send(system, 32)) for system in systems]
        title = "sync sends, 32 in flight: plain, and with TLS and signatures"
        rounds.play([Case(CASE, title, contenders)], systems, rounds=plan.rounds)
    finally:
        for system in systems:
            system.stop_all()
        shutil.rmtree(folder, ignore_errors=True)
    cpu = {label: rounds.median(CASE, label, lambda window: window.server_cpu_us) for label in rounds.contenders(CASE)}
    ours, without, other = cpu[OURS_SIGNED], cpu[OURS], cpu[theirs.label]
    return [
        Row.at_most(JUDGED[0], ours / without, 1.35),
        Row.at_most(JUDGED[1], ours / other, 0.4),
        *rounds.absolute_rows("signed_send", "32", CASE),
    ]


def _refuses(stranger: Callable[[], list[Window]], label: str) -> None:
    """What lets in who does not sign is not what is to be measured."""
    try:
        stranger()
    except MeasurementFailed:
        return
    raise MeasurementFailed(f"{label} takes sends that nobody signed")
