"""Asyncio producer and consumer for RocketMQ's client API, used by the command line and in tests.

async with Producer(ClientOptions(parse_access_points("127.0.0.1:8081")), clock) as producer:
    receipt = await producer.send("orders", b"...", tag="paid")
"""

from tandemmq.client.connection import ClientOptions, Credentials, parse_access_points
from tandemmq.client.messages import (
    AccessPointInvalid,
    BrokerRefused,
    ClientError,
    EndpointUnreachable,
    ReceivedMessage,
    SendFailed,
    SendReceipt,
    TopicNotFound,
)
from tandemmq.client.producer import Producer
from tandemmq.client.simple_consumer import SimpleConsumer

__all__ = [
    "AccessPointInvalid",
    "BrokerRefused",
    "ClientError",
    "ClientOptions",
    "Credentials",
    "EndpointUnreachable",
    "Producer",
    "ReceivedMessage",
    "SendFailed",
    "SendReceipt",
    "SimpleConsumer",
    "TopicNotFound",
    "parse_access_points",
]
