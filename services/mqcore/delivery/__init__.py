"""Delivery to consumer groups: leases with receipt handles, tag filters, and receives that wait."""

from __future__ import annotations

from mqcore.delivery.lease_table import LeaseTable
from mqcore.delivery.lease_values import (
    Backlog,
    Delivery,
    LeasedRecord,
    QueueState,
    Received,
    RestoreReport,
    SkippedBacklog,
)
from mqcore.delivery.options import MAX_INVISIBLE_MS, MIN_INVISIBLE_MS, DeliveryOptions
from mqcore.delivery.poll_table import PollTable
from mqcore.delivery.queue_reader import QueueReader
from mqcore.delivery.receipt_handle import ReceiptHandle, broker_of_handle, read_handle
from mqcore.delivery.tag_filter import TagFilter

__all__ = [
    "MAX_INVISIBLE_MS",
    "MIN_INVISIBLE_MS",
    "Backlog",
    "Delivery",
    "DeliveryOptions",
    "LeaseTable",
    "LeasedRecord",
    "PollTable",
    "QueueReader",
    "QueueState",
    "ReceiptHandle",
    "Received",
    "RestoreReport",
    "SkippedBacklog",
    "TagFilter",
    "broker_of_handle",
    "read_handle",
]
