"""The console's pages: routes, and what each shows."""

from typing import Final

from admin.api.console import AddPages
from admin.api.pages.dead_letter_pages import add_dead_letter_pages
from admin.api.pages.group_pages import add_group_pages
from admin.api.pages.message_pages import add_message_pages
from admin.api.pages.overview_pages import add_overview_pages
from admin.api.pages.replication_pages import add_replication_pages
from admin.api.pages.topic_pages import add_topic_pages

__all__ = ["CONSOLE_PAGES"]

CONSOLE_PAGES: Final[tuple[AddPages, ...]] = (
    add_overview_pages,
    add_replication_pages,
    add_topic_pages,
    add_group_pages,
    add_message_pages,
    add_dead_letter_pages,
)
