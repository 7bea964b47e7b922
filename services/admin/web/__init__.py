"""The status page: what `tandemmq status` prints, for a browser."""

from admin.web.status_page import StaticFile, StatusPage

__all__ = ["StaticFile", "StatusPage"]
