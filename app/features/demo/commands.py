"""Command demo: a small company's jobs on an embedded server, to look at."""

from __future__ import annotations

import click

from dataloader.app.cli.parsing import option


@click.command(short_help="Show the jobs of a small company, with nothing set up.")
@option("--minutes", type=click.FloatRange(min=0, min_open=True), metavar="MINUTES",
        help="End by itself after so long.  [default: at Ctrl-C]")  # fmt: skip
@option("--port", type=click.IntRange(1, 65535), metavar="PORT",
        help="The port of the dashboard.  [default: 8081, or one that is free]")  # fmt: skip
@option("--no-browser", is_flag=True, help="Only print the address.")
def demo(*, minutes: float | None, port: int | None, no_browser: bool) -> int:
    """Start a PostgreSQL server and the service in a temporary folder, with the jobs of a small company: two weeks of
    history, and workers that run its schedules while you look.

    Needs nothing but PostgreSQL's programs, or the extra `embedded`. Settings and databases of yours are neither read
    nor changed. At the end the server and the folder are gone.
    """
    from dataloader.app.features.demo.show import show  # noqa: PLC0415 - the driver is not for other commands

    return show(minutes=minutes, port=port, opens_browser=not no_browser, report=click.echo)


COMMANDS = {"Run the service": (demo,)}
