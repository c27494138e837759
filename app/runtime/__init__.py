"""The processes of a service: gunicorn with the API and a worker pool, or a worker pool alone.

database.py         where the queue is, and whether its tables fit
service.py          the parts of a process, built from the settings
shutdown.py         stops a process after a signal, within a time limit
gunicorn_worker.py  the service inside a gunicorn worker, for `dataloader serve` and `gunicorn wsgi:app`
serve.py            `dataloader serve`: gunicorn for a terminal
worker.py           `dataloader worker`: no HTTP
early_signals.py    signals during the imports
"""
