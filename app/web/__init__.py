"""Everything that speaks HTTP: `create_app` and what it may be told."""

from app.web.application import create_app
from app.web.options import WebOptions

__all__ = ["WebOptions", "create_app"]
