"""What Sentry receives of failed jobs from real workers, through a transport that writes to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import eventually
from tests.support.real_service import ServiceJobs, ServiceStarter

PACKAGE = """\
import json

import sentry_sdk
from sentry_sdk.transport import Transport

from dataloader import register
from dataloader.pipelines.retry import Fixed


class FileTransport(Transport):
    def capture_envelope(self, envelope):
        with open({events!r}, "a") as file:
            file.write(json.dumps(envelope.get_event(), default=str) + "\\n")


sentry_sdk.init("http://key@127.0.0.1:9/1", transport=FileTransport, auto_enabling_integrations=False)


@register("acme.thread", no_retry=[ValueError])
def fail_in_thread(args):
    fail(args)


@register("acme.process", isolation="process", no_retry=[ValueError])
def fail_in_process(args):
    fail(args)


@register("acme.retried", retry=Fixed(0))
def fail_again(args):
    fail(args)


def fail(args):
    token = args["token"]
    raise ValueError("the partner refused " + token + " at postgresql://etl:hunter22@host/db")
"""


def test_sentry_gets_one_event_with_frames_for_each_failed_job(run: ServiceStarter, jobs: ServiceJobs, tmp_path: Path):
    file = tmp_path / "events.jsonl"
    (tmp_path / "acme.py").write_text(PACKAGE.format(events=str(file)), encoding="utf-8")
    worker = run(
        "worker", PYTHONPATH=str(tmp_path), DL_PIPELINES="acme", DL_SECRET_PARTNER="s3cret-token"
    ).wait_until_ready()
    token = {"$secret": "partner"}
    failing = {name: jobs.insert(f"acme.{name}", token=token)[0] for name in ("thread", "process", "retried")}
    (refused,) = jobs.insert("acme.thread", token={"$secret": "no-such-secret"})
    jobs.wait_for_counts({"failed": 4})

    def received() -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    eventually(lambda: len(received()) >= 4)
    assert worker.stop() == 0
    events = {event["tags"]["job"]: event for event in received()}

    assert len(received()) == len(events) == 4, [event.get("logentry") for event in received()]
    for name, job in failing.items():
        event = events[job]
        assert event["tags"] == {
            "task": f"acme.{name}", "queue": "q", "job": job, "attempt": str(jobs.row(job)[1])
        }  # fmt: skip
        assert event["transaction"] == f"acme.{name}"
        (error,) = event["exception"]["values"]
        assert error["type"] == "ValueError"
        assert error["value"] == "the partner refused *** at postgresql://etl:***@host/db"
        assert error["stacktrace"]["frames"][-1]["function"] == "fail"
    assert events[refused]["tags"]["task"] == "acme.thread"
    assert "no-such-secret" in json.dumps(events[refused]["message"])
    assert "exception" not in events[refused]
    assert "s3cret-token" not in file.read_text()
    assert "hunter22" not in file.read_text()
