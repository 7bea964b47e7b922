"""What the console's pages show, and their templates."""

from admin.web.page_templates import PageTemplates, StaticFile

__all__ = ["PageTemplates", "StaticFile"]
