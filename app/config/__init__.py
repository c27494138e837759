"""Settings of the service, read from environment variables and a `.env` file.

settings.py   Settings: one field a setting
values.py     the types of their values: how they are read, and written without their secrets
tasks.py      tasks that settings register
loading.py    load_settings: all errors together, old names with a warning
checks.py     contradictions between settings, and misspelt names
dsn.py        libpq connection strings, and how to show them without secrets
docs.py       docs/configuration.md and .env.example, made from the model
"""

from dataloader.app.config.loading import load_settings
from dataloader.app.config.settings import SettingInfo, Settings
from dataloader.app.config.values import QueueWorkers, Rotation

__all__ = ["QueueWorkers", "Rotation", "SettingInfo", "Settings", "load_settings"]
