"""What a broker tells of itself in numbers."""

from broker.metrics.broker_metrics import BrokerMetrics
from broker.metrics.catalogue import BROKER_METRICS

__all__ = ["BROKER_METRICS", "BrokerMetrics"]
