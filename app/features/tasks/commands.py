"""Command tasks: the tasks of the settings' packages."""
# ruff: noqa: PLC0415 - the pipelines are not for commands that send requests

from __future__ import annotations

import sys

import click

from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.output import Table, is_json
from dataloader.app.cli.parsing import json_option
from dataloader.app.cli.service import load_settings

_TASKS = Table("tasks", "task, kind, module, requires, python")


@click.command(short_help="List the tasks that the settings' packages register.")
@json_option
def tasks() -> int:
    """List the tasks that the packages in DL_PIPELINES and DL_TASKS register, and what cannot be loaded of them.

    It lists the code of this machine, not of a running service.
    """
    from dataloader.app.config.checks import working_folder
    from dataloader.pipelines import contract

    settings = load_settings()
    sys.path += working_folder()  # as for the service: the packages may be in the working directory
    failures = contract.load_tasks(settings.pipelines, settings.tasks)
    items = [
        {
            "task": task.name,
            "kind": task.kind.value,
            "module": task.call.__module__,
            "requires": dict(task.options.requires),
            "python": task.options.python,
        }
        for task in contract.registry
    ]
    _TASKS.print({"tasks": items, "failures": failures})
    for module, trace in ({} if is_json() else failures).items():
        click.echo(f"Error: {module} cannot be imported; its tasks are missing.\n{trace}", err=True)
    return ExitCode.FAILURE if failures else ExitCode.OK


COMMANDS = {"Tasks, schedules and data": (tasks,)}
