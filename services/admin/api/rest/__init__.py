"""What operators ask and do, over HTTP: the routes below /api/v1, one module for each kind of thing."""
