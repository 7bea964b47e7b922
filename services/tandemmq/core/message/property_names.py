"""Names of the properties the broker reads or writes itself, as in RocketMQ's MessageConst; others are the user's."""

from __future__ import annotations

from typing import Final

# What a message is filtered and found by.
PROPERTY_TAGS: Final = "TAGS"
"""One tag; the source of the ConsumeQueue's tags code."""
PROPERTY_KEYS: Final = "KEYS"
"""Business keys, separated by one space; each is indexed."""
PROPERTY_UNIQUE_KEY: Final = "UNIQ_KEY"
"""The client's unique message id; indexed."""
PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"
"""Message group of a FIFO message."""
PROPERTY_PRIORITY: Final = "_SYS_MSG_PRIORITY_"
"""Priority of a message in a PRIORITY topic: 0 or more, larger is more urgent."""

PROPERTY_LITE_TOPIC: Final = "__LITE_TOPIC"
"""Lite topic of a message in a LITE topic."""
PROPERTY_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
"""Name of the logical queue that the message is in as well: `%LMQ%$topic$lite topic`."""
PROPERTY_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
"""Its offset there."""

# Where and when it was born, and how it is stored.
PROPERTY_WAIT: Final = "WAIT"
""""false": the sender waits neither for the disk nor for a slave. Absent means true."""
PROPERTY_BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
PROPERTY_BORN_HOST: Final = "__BORNHOST"
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_REGION: Final = "MSG_REGION"
PROPERTY_TRACE_ON: Final = "TRACE_ON"
PROPERTY_INNER_COUNT: Final = "INNER_NUM"
"""Messages in an inner batch: by so much its queue offset advances."""
PROPERTY_INNER_BASE: Final = "INNER_BASE"

# Delayed delivery.
PROPERTY_DELAY_LEVEL: Final = "DELAY"
"""Delay level, 1 is first. A request at put time only: the delivered copy still carries it."""
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
"""Where a delayed, timer or half message belongs."""
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"
PROPERTY_TIMER_DELAY_S: Final = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""Due time the broker computed from one of the three above."""
PROPERTY_TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
"""How often a timer was put again because its record grew old."""

# Transactions.
PROPERTY_TRANSACTION_PREPARED: Final = "TRAN_MSG"
""""true" on a half message and on the message its commit writes."""
PROPERTY_PRODUCER_GROUP: Final = "PGROUP"
PROPERTY_TRANSACTION_ID: Final = "__transactionId__"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TRANSACTION_RESOLUTION: Final = "TRAN_RESOLUTION"
"""On a record that ends a half message: how. Our own, as the next; RocketMQ writes neither and passes over both."""
PROPERTY_TRANSACTION_UNDECIDED_FROM: Final = "TRAN_UNDECIDED_FROM"
"""On the same: below this place in the half topic all have ended."""

# Retries and dead letters.
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
"""Original topic, set when a message is first sent back."""
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
PROPERTY_DEAD_LETTER_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

# Never stored or removed from what a client sends.
PROPERTY_CRC32: Final = "__CRC32#"
"""Checksum over the record (RocketMQ's `enabledAppendPropCRC`); kept as read, removed from what a client sends."""
TRANSIENT_PROPERTY_PREFIX: Final = "__RMQ.TRANSIENT."
"""Properties that begin so live in memory only."""
