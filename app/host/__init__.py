"""The processes a service runs in: gunicorn with the API and a worker pool, or a worker pool alone.

service.py    what a process consists of, wired from the settings: database, pipelines, API, worker pool
web.py        under gunicorn: `dataloader serve` and `gunicorn wsgi:app`
worker.py     alone: `dataloader worker`
"""
