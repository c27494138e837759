"""What gunicorn runs: `gunicorn wsgi:app`. The worker pool beside it is started by gunicorn.conf.py."""

from app.config import Settings
from app.host.service import Service, set_up_logging

settings = Settings.load(loads_pipelines=True)
set_up_logging(settings)
service = Service(settings)
app = service.app
