"""The pages: what `tandemmq status` and `tandemmq trace` print, for a browser."""

from admin.web.page_templates import PageTemplates, StaticFile
from admin.web.status_page import StatusPage
from admin.web.trace_page import TracePage

__all__ = ["PageTemplates", "StaticFile", "StatusPage", "TracePage"]
