"""The `dataloader` command.

`command` has the tree of commands and prints errors; `service`, `keys` and `skeleton` work in this process; all others
send requests through `dataloader.Client`. `text`, `render` and `watch` print.
"""

from dataloader.app.cli.command import main

__all__ = ["main"]
