"""What operators ask and do, over HTTP: the routes below /api/v1, one module for each kind of thing."""

from admin.api.rest.add_rest import add_rest

__all__ = ["add_rest"]
