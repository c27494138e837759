"""The `dataloader` command.

`command` has the groups of commands and prints errors. Commands are in `service`, `skeleton` and the `commands.py` of
each feature; nearly all are an operation of the HTTP API and what is printed of its answer (`remote`, `operations`).
"""

from dataloader.app.cli.command import main

__all__ = ["main"]
