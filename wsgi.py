"""For `gunicorn wsgi:app` in a checkout; gunicorn finds gunicorn.conf.py by itself."""

from dataloader.wsgi import app

__all__ = ["app"]
