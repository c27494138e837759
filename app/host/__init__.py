"""The processes a service runs in: gunicorn with the API and a worker pool, or a worker pool alone.

database.py   where the queue is, and whether its tables fit
service.py    what a process consists of, wired from the settings: database, pipelines, API, worker pool
ending.py     how a process ends: by a note from a signal handler, within a time
guest.py      the service inside a gunicorn worker: `dataloader serve` and `gunicorn wsgi:app` alike
web.py        `dataloader serve`: gunicorn for a person's terminal
worker.py     `dataloader worker`: no HTTP
early_signals.py  signals before any of them is imported
"""
