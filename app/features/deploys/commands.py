"""Command deploy: worker processes of one release claim jobs, those of others finish what they run."""

from __future__ import annotations

import math
import socket
import time
from contextlib import closing

import click

from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.output import print_payload
from dataloader.app.cli.parsing import DURATION, json_option, option


@click.command(short_help="Let processes of one release of your code claim jobs.")
@click.argument("release", required=False)
@option("--wait", is_flag=True, help="Wait until the jobs of the other processes have ended.")
@option("--timeout", type=DURATION, help="How long to wait at most.  [default: for ever]")
@option("--min-workers", type=click.IntRange(0), default=1, metavar="NUMBER",
        help="How many live worker processes the release must have first.  [default: 1]")  # fmt: skip
@json_option
def deploy(*, release: str | None, wait: bool, timeout: float | None, min_workers: int) -> int:
    """Have the worker processes of a release of your code claim jobs, and those of all other releases claim no more.

    Start the new processes first. The old ones finish the jobs that they run, however long that takes, and can be
    stopped after it. Without RELEASE it is that of this process: DL_RELEASE, or the git commit of its code. Called with
    the old release while its processes are live, it takes a deploy back. Exits with code 1 if --timeout ended before
    the processes were there, in which case nothing was changed, or before the jobs had ended.
    """
    from dataloader.app.config import load_settings  # noqa: PLC0415 - the driver is not for other commands
    from dataloader.app.db.statements import AuditContext, acting_as  # noqa: PLC0415
    from dataloader.app.features.deploys.deploy import Deploy  # noqa: PLC0415
    from dataloader.app.runtime.code_release import find_release  # noqa: PLC0415
    from dataloader.app.runtime.commands import os_user  # noqa: PLC0415
    from dataloader.app.runtime.database import Database  # noqa: PLC0415
    from dataloader.app.state.queues import Queues  # noqa: PLC0415

    settings = load_settings()
    release = release or find_release(settings.release, settings.pipelines)
    if release is None:
        raise click.UsageError("name the release: DL_RELEASE is not set, and the code is in no git working copy")
    context = AuditContext(action="deploy", actor=f"account {os_user()}", via="command", address=socket.gethostname())
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    with closing(Database(settings)) as database, database.pool("dataloader-deploy") as pool, acting_as(context):
        steps = Deploy(Queues(pool), release, deadline=deadline, report=lambda line: click.echo(line, err=True))
        result = steps.run(min_workers=min_workers, wait=wait)
    print_payload(vars(result), result.sentence)
    return ExitCode.FAILURE if result.missing or (wait and result.running) else ExitCode.OK


COMMANDS = {"Queues and workers": (deploy,)}
