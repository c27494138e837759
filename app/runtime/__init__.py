"""The processes of a service: gunicorn with the API and a worker pool, or a worker pool alone.

database.py         where the queue is, and whether its tables fit
service.py          the parts of a process, built from the settings
shutdown.py         stops a process after a signal, within a time limit
serve.py            gunicorn, for `dataloader serve` and `gunicorn wsgi:app`
buffered_worker.py  its worker class, which reads requests whole before a thread answers them
request_buffer.py   where a request ends
connection.py       a client's connection
worker.py           `dataloader worker`: no HTTP
"""
