"""The WSGI app for `gunicorn wsgi:app`. gunicorn.conf.py starts the worker pool of the process."""

from dataloader.app.config import load_settings
from dataloader.app.runtime.service import Service, set_up_logging

settings = load_settings(loads_pipelines=True)
set_up_logging(settings)
service = Service(settings)
app = service.app
