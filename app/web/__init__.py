"""The HTTP API and the dashboard: `create_app` and its options."""

from app.web.app import create_app
from app.web.options import WebOptions

__all__ = ["WebOptions", "create_app"]
