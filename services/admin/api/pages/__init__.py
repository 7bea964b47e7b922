"""The console's pages: routes, and what each shows."""

from typing import Final

from admin.api.console import AddPages
from admin.api.pages.broker_pages import add_broker_pages
from admin.api.pages.consistency_pages import add_consistency_pages
from admin.api.pages.dead_letter_pages import add_dead_letter_pages
from admin.api.pages.event_pages import add_event_pages
from admin.api.pages.group_pages import add_group_pages
from admin.api.pages.message_pages import add_message_pages
from admin.api.pages.overview_pages import add_overview_pages
from admin.api.pages.replication_pages import add_replication_pages
from admin.api.pages.topic_pages import add_topic_pages
from admin.api.pages.trace_pages import add_trace_pages

__all__ = ["CONSOLE_PAGES"]

CONSOLE_PAGES: Final[tuple[AddPages, ...]] = (
    add_overview_pages,
    add_replication_pages,
    add_broker_pages,
    add_consistency_pages,
    add_event_pages,
    add_topic_pages,
    add_group_pages,
    add_message_pages,
    add_dead_letter_pages,
    add_trace_pages,
)
