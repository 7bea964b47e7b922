"""A replica's log as tables: `spark.read.format("commitlog")` and `"consumequeue"`.

    from tandemmq.consistency.data_sources import register
    register(spark)
    spark.read.format("commitlog").load("/data/broker-a").createOrReplaceTempView("log")
    spark.sql("SELECT topic, count(*) FROM log GROUP BY topic").show()

Columns and options are in docs/protocol/log-as-tables.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemmq.consistency.data_sources.commit_log_source import CommitLogSource
from tandemmq.consistency.data_sources.consume_queue_source import ConsumeQueueSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CommitLogSource", "ConsumeQueueSource", "register"]


def register(spark: SparkSession) -> None:
    """Makes both known to a session."""
    for source in (CommitLogSource, ConsumeQueueSource):
        spark.dataSource.register(source)
