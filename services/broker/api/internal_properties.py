"""Property names that belong to brokers and clients of RocketMQ, not to applications (its MessageConst)."""

from __future__ import annotations

from typing import Final

from mqcore.message import property_names

__all__ = ["PROPERTY_TRACE_CONTEXT", "is_internal"]

PROPERTY_TRACE_CONTEXT: Final = "TRACE_CONTEXT"

# Names this broker neither reads nor writes, but that other members of the family do.
_OF_OTHERS: Final = frozenset(
    {
        "1ST_POP_TIME",
        "ARRIVE_TIME",
        "BUYER_ID",
        "CONSUME_START_TIME",
        "CORRECTION_FLAG",
        "CORRELATION_ID",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "INSTANCE_ID",
        "MAX_OFFSET",
        "MIN_OFFSET",
        "MQ2_FLAG",
        "MSG_TYPE",
        "POP_CK",
        "POP_CK_OFFSET",
        "PUSH_REPLY_TIME",
        "REPLY_TO_CLIENT",
        "TIMER_DELAY_LEVEL",
        "TIMER_DEL_UNIQKEY",
        "TIMER_ROLL_TIMES",
        "TRANSFER_FLAG",
        "TTL",
    }
)
_OF_THIS_BROKER: Final = frozenset(
    value for name, value in vars(property_names).items() if name.startswith("PROPERTY_")
)
_INTERNAL: Final = _OF_OTHERS | _OF_THIS_BROKER | {PROPERTY_TRACE_CONTEXT}


def is_internal(name: str) -> bool:
    """Whether an application may neither set nor see the property."""
    return name in _INTERNAL or name.startswith(property_names.TRANSIENT_PROPERTY_PREFIX)
