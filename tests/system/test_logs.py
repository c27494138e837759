"""What is written while jobs are run: three files of JSON lines, each with its ids, none with a secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from psycopg2.extensions import make_dsn

from tests.support import eventually
from tests.support.real_service import ServiceJobs, ServiceStarter

SECRET = "hunter2-and-a-half"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_log_files_hold_json_with_ids_and_no_secrets(run: ServiceStarter, jobs: ServiceJobs, dsn: str, tmp_path: Path):
    files = {name: tmp_path / "logs" / name for name in ("app.log", "metrics.log", "audit.log")}
    running = run(
        "serve",
        DL_DB_DSN=make_dsn(dsn, password=SECRET),
        LOG_PATH=str(tmp_path / "logs"),
        METRIC_PATH=str(tmp_path / "logs"),
        AUDIT_LOG_PATH=str(tmp_path / "logs"),
        DEBUG="true",
    ).wait_until_ready()
    (good,) = jobs.insert()
    (bad,) = jobs.insert("test.secret", password=SECRET)
    eventually(lambda: jobs.row(good)[0] == "succeeded" and jobs.row(bad) == ("queued", 1))
    running.get(f"/api/v1/jobs/{good}/status")
    assert running.stop() == 0

    lines = {name: read(path) for name, path in files.items()}
    for name, result in lines.items():
        assert result, name
        assert all({"time", "level", "event", "pid"} <= set(line) for line in result), name
        assert SECRET not in files[name].read_text(), name
    assert SECRET not in running.process.text
    for name in ("metrics.log", "audit.log"):
        for event in ("job.started", "job.ended"):
            by_job = {line["job"]: line for line in lines[name] if line["event"] == event}
            assert set(by_job) == {good, bad}
            assert (by_job[good]["task"], by_job[good]["queue"], by_job[good]["attempt"]) == ("test.nap", "q", 1)
    ends = {line["job"]: line["status"] for line in lines["audit.log"] if line["event"] == "job.ended"}
    assert ends == {good: "succeeded", bad: "queued"}
    started = next(line for line in lines["audit.log"] if line["event"] == "job.started")
    assert started["run"]
    assert started["worker"]
    asked = [line for line in lines["audit.log"] if line.get("path", "").endswith(f"{good}/status")]
    assert asked
    assert all(line["request_id"] for line in asked)
    assert [line["event"] for line in lines["app.log"]].count("pool.started") == 1
