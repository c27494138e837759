"""For `gunicorn wsgi:app`: the settings' address and threads, and the worker pool's life inside a gunicorn worker."""

import sys

from app.config import Settings
from app.host.web import Tenant, gunicorn_settings

globals().update(gunicorn_settings(Settings.load()))

_tenants: list[Tenant] = []


def post_worker_init(worker):  # type: ignore[no-untyped-def]
    service = sys.modules["wsgi"].service
    _tenants.append(Tenant(service))
    _tenants[-1].move_in()


def worker_exit(server, worker):  # type: ignore[no-untyped-def]
    for tenant in _tenants:
        tenant.move_out()
