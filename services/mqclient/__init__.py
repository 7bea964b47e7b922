"""Asyncio producer and consumer for RocketMQ's client API, used by the command line and in tests.

async with Producer(ClientOptions(parse_access_points("127.0.0.1:8081")), clock) as producer:
    receipt = await producer.send("orders", b"...", tag="paid")
"""

from mqclient.connection import ClientOptions, parse_access_points
from mqclient.errors import (
    AccessPointInvalid,
    BrokerRefused,
    ClientError,
    EndpointUnreachable,
    SendFailed,
    TopicNotFound,
)
from mqclient.messages import ReceivedMessage, SendReceipt
from mqclient.producer import Producer
from mqclient.simple_consumer import SimpleConsumer

__all__ = [
    "AccessPointInvalid",
    "BrokerRefused",
    "ClientError",
    "ClientOptions",
    "EndpointUnreachable",
    "Producer",
    "ReceivedMessage",
    "SendFailed",
    "SendReceipt",
    "SimpleConsumer",
    "TopicNotFound",
    "parse_access_points",
]
