"""Every knob of the service: its variable, default and meaning, and all faults at once.

settings.py   Settings, one field a knob, and how it is loaded
checks.py     what no single field can see: contradictions and misspelt names
values.py     texts that mean more than a number: zones, rotations, workers
tasks.py      tasks that settings register
dsn.py        libpq connection strings, and how to show them without secrets
docs.py       the pages made from the same model
"""

from app.config.settings import Knob, Settings
from app.config.values import QueueWorkers, Rotation

__all__ = ["Knob", "QueueWorkers", "Rotation", "Settings"]
