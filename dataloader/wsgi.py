"""The WSGI app for gunicorn. The hooks of gunicorn_conf.py start the worker pool of the process."""

from dataloader.app.config import load_settings
from dataloader.app.runtime.service import Service, set_up_logging

settings = load_settings(loads_pipelines=True)
set_up_logging(settings)
service = Service(settings)
app = service.app
