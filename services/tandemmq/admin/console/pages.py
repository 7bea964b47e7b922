"""The console's pages: routes, and what each shows."""

from typing import Final

from tandemmq.admin.console.answers import AddPages
from tandemmq.admin.console.brokers import add_broker_pages
from tandemmq.admin.console.consistency import add_consistency_pages
from tandemmq.admin.console.dead_letters import add_dead_letter_pages
from tandemmq.admin.console.events import add_event_pages
from tandemmq.admin.console.groups import add_group_pages
from tandemmq.admin.console.messages import add_message_pages
from tandemmq.admin.console.overview import add_overview_pages
from tandemmq.admin.console.replication import add_replication_pages
from tandemmq.admin.console.settings import add_settings_pages
from tandemmq.admin.console.topics import add_topic_pages
from tandemmq.admin.console.traces import add_trace_pages
from tandemmq.admin.console.transactions import add_transaction_pages

__all__ = ["CONSOLE_PAGES"]

CONSOLE_PAGES: Final[tuple[AddPages, ...]] = (
    add_overview_pages,
    add_replication_pages,
    add_broker_pages,
    add_consistency_pages,
    add_event_pages,
    add_settings_pages,
    add_topic_pages,
    add_group_pages,
    add_message_pages,
    add_dead_letter_pages,
    add_transaction_pages,
    add_trace_pages,
)
