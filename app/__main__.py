"""The `dataloader` command; `python -m app` is the same."""

import signal
import sys

from app.runtime.early_signals import exit_on

_SERVICES = ("serve", "worker")


def main() -> None:
    """The console script. Does not return."""
    if sys.argv[1:2] and sys.argv[1] in _SERVICES:
        exit_on(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    from app.cli import main as run_command  # noqa: PLC0415 - the imports take a second, in which signals may come

    run_command()


if __name__ == "__main__":
    main()
