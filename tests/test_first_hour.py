"""What the README and the banner print, run as printed: by an ordinary user, in a checkout, with an empty database."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from dataloader import Client
from dataloader.app.queue.job import Status
from tests.support import Databases, eventually
from tests.support.checkout import Checkout, open_checkout, python_blocks, shell_blocks
from tests.support.processes import ROOT, Process

README = (ROOT / "README.md").read_text(encoding="utf-8")
FINAL = [status for status in Status if status.final]
OWN_SERVER = "DL_DB_DSN=postgresql://etl@db.example.org/etl make run\n"


@pytest.fixture
def checkout(databases: Databases) -> Iterator[Checkout]:
    with databases.fresh(schema=False) as dsn, open_checkout(dsn) as made:
        made.write("my_etl/__init__.py", "")
        made.write("my_etl/readme.py", "\n".join(python_blocks(README)))
        yield made


def commands_of_banner(service: Process) -> list[str]:
    """The indented commands, which a backslash continues."""
    text = service.text[service.text.index("Try a first job") :].replace("\\\n", "")
    return re.findall(r"^  ((?:curl|\S*dataloader) .*)$", text, re.MULTILINE)


def test_commands_of_readme_and_banner_do_what_they_say(checkout: Checkout):
    two, run, own_server, first_job, trigger, backfill = shell_blocks(README)
    assert [line.split("  ")[0] for line in two.splitlines()] == ["make demo", "make run"]
    assert own_server == OWN_SERVER, "an example of an address; checkout.running() has that of a real server"
    start, test = run.splitlines()
    assert test.startswith("make test"), "runs this test"
    activate = "PATH=$PWD/.venv/bin:$PATH\n"  # as `. .venv/bin/activate` does, which the text asks for
    with checkout.running(start, {"DL_PIPELINES": "dataloader.pipelines,my_etl"}) as service:
        client = Client(checkout.url)

        def wait_until_canceled(job_id: str) -> None:
            eventually(lambda: client.status(job_id)["status"] in FINAL, message="ended by the last command")
            assert client.status(job_id)["status"] == Status.CANCELED

        first = checkout.shell(f'{first_job}echo; echo "$job"').splitlines()[-1]
        wait_until_canceled(first)
        assert "succeeded" in checkout.shell(trigger)
        assert "done: 31 succeeded" in checkout.shell(activate + backfill)
        assert "load.invoices" in checkout.shell(f"{activate}DL_PIPELINES=my_etl dataloader tasks")

        by_command, trigger, status, cancel = commands_of_banner(service)
        assert "succeeded" in checkout.shell(by_command)
        (second,) = re.findall(r'"job_id": ?"([^"]+)"', checkout.shell(trigger))
        for command in (status, cancel):
            assert second in checkout.shell(command.replace("JOB_ID", second))
        wait_until_canceled(second)
