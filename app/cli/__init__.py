"""The `dataloader` command: a door, no logic of its own.

`command` is the tree of commands and what each error means to a shell; `ask` and `trigger` speak to a running service
through `app.client`; `host` starts things in this process; `watch`, `text` and `draw` are what people see.
"""

from app.cli.command import main

__all__ = ["main"]
