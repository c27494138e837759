from __future__ import annotations

import json
from uuid import uuid4

from tests.app.cli.fake_service import AT, BUSY, Answer
from tests.app.features.webhooks.test_commands import Shell, shell, webhook_dsn  # noqa: F401 - fixtures


def test_status_shows_a_job_as_names_and_values(run, service):
    job_id = service.add(
        status="failed",
        attempt=2,
        started_at=AT,
        finished_at=AT,
        error="ValueError: no\nrates",
        progress={"processed": 5},
    )

    shown = run("status", job_id)

    lines = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines())
    assert shown.exit_code == 0
    assert lines["job"] == job_id
    assert lines["status"] == "failed"
    assert lines["error"] == "ValueError: no rates"
    assert "heartbeat" not in lines


def test_a_failed_job_is_no_failed_command_unless_it_is_watched(run, service):
    job_id = service.add(status="failed")

    assert run("status", job_id).exit_code == 0
    assert run("status", job_id, "--watch").exit_code == 1


def test_status_prints_the_whole_response_as_json(run, service):
    job_id = service.add(status="running", progress={"Банк": 1})

    shown = run("status", job_id, "--json")

    assert json.loads(shown.stdout)["progress"] == {"Банк": 1}
    assert "Банк" in shown.stdout


def test_status_watch_in_json_says_nothing_until_the_end(run, service):
    job_id = service.add({"status": "running"}, {"status": "succeeded"})

    shown = run("status", job_id, "--watch", "--json")

    assert json.loads(shown.stdout)["status"] == "succeeded"
    assert shown.exit_code == 0


def test_an_unknown_job_exits_with_3_and_says_how_to_find_one(run, service):
    shown = run("status", str(uuid4()))

    assert shown.exit_code == 3
    assert shown.stdout == ""
    assert "there is no job" in shown.stderr
    assert "dataloader jobs" in shown.stderr


def test_what_is_no_id_is_a_mistake_in_usage(run, service):
    assert run("status", "yesterday's").exit_code == 2
    assert service.asked == []


def test_cancel_says_what_came_of_it(run, service):
    queued, running, done = service.add(), service.add(status="running"), service.add(status="succeeded")

    assert "is canceled" in run("cancel", queued).stdout
    assert "ends at its next safe point" in run("cancel", running).stdout
    assert "already ended: succeeded" in run("cancel", done).stdout


def test_retry_queues_a_job_again(run, service):
    job_id = service.add(status="lost")

    assert run("retry", job_id).stdout == f"Job {job_id} is queued again.\n"
    assert service.jobs[job_id]["status"] == "queued"


def test_retry_of_a_job_that_cannot_be_is_refused_with_4(run, service):
    shown = run("retry", service.add(status="succeeded"))

    assert shown.exit_code == 4
    assert "cannot be retried" in shown.stderr


def test_jobs_in_a_pipe_are_whole_aligned_lines(run, service):
    wordy = service.add(status="failed", task="a" * 100, error="e" * 100)
    short = service.add(queue="q")

    shown = run("jobs")

    head, *lines = shown.stdout.splitlines()
    assert head.split() == ["job", "status", "task", "queue", "attempts", "progress", "created", "error"]
    assert lines[0].startswith(wordy)
    assert lines[0].endswith("e" * 100)
    assert lines[1].startswith(short)


def test_jobs_are_chosen_by_queue_status_and_task(run, service):
    service.add(queue="other")
    service.add(queue="q", status="lost", task="t")

    shown = run("jobs", "--queue", "q", "--status", "lost", "--task", "t", "--limit", "3", "--json")

    assert [job["queue"] for job in json.loads(shown.stdout)["jobs"]] == ["q"]
    assert service.asked[0].query == {"queue": ["q"], "status": ["lost"], "task": ["t"], "limit": ["3"]}


def test_no_jobs_prints_note_to_stderr(run, service):
    shown = run("jobs")

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "No job" in shown.stderr


def test_jobs_search_continues_until_it_has_an_answer(run, service):
    job = {**service.jobs[service.add(lock_key="k")], "created_at": AT}
    service.unruly.extend(
        [
            Answer(body={"jobs": [], "next": "one", "scanned_to": AT, "count": None}),
            Answer(body={"jobs": [], "next": "two", "scanned_to": AT, "count": None}),
            Answer(body={"jobs": [job], "next": None, "scanned_to": None, "count": None}),
        ]
    )

    shown = run("jobs", "--text", "needle", "--json")

    assert [found["job_id"] for found in json.loads(shown.stdout)["jobs"]] == [job["job_id"]]
    assert [asked.query.get("after") for asked in service.asked] == [None, ["one"], ["two"]]
    assert "Searched back to" in shown.stderr


def test_jobs_says_none_match_only_after_all_are_searched(run, service):
    service.unruly.append(Answer(body={"jobs": [], "next": "one", "scanned_to": AT, "count": None}))

    shown = run("jobs", "--lock-key", "none")

    assert shown.exit_code == 0
    assert shown.stderr.endswith("No jobs match.\n")
    assert len(service.asked) == 2


def test_events_show_the_journal(run, service):
    job_id = service.add()

    shown = run("events", job_id)
    result = json.loads(run("events", job_id, "--json").stdout)

    assert [line.split()[2] for line in shown.stdout.splitlines()] == ["queued", "picked"]
    assert shown.stdout.rstrip().endswith(" n=1")
    assert [event["kind"] for event in result["events"]] == ["queued", "picked"]


def test_text_of_others_cannot_drive_the_terminal(run, service):
    job_id = service.add(
        status="failed", error="\x1b]0;owned\x07\x1b[31mred\u202e", progress={"unit": "\x1b[2J", "done": 1}
    )

    for command in (["status", job_id], ["jobs"]):
        shown = run(*command)

        assert shown.stdout.isascii()
        assert all(character.isprintable() for character in shown.stdout.replace("\n", ""))


def test_a_service_that_is_away_is_69_with_advice(run, service):
    service.unruly.append(BUSY)

    shown = run("jobs", "--retry-timeout", "0")

    assert shown.exit_code == 69
    assert "the database does not answer" in shown.stderr
    assert "dataloader serve" in shown.stderr


def test_wait_for_service_is_reported_once_and_succeeds(run, service):
    service.unruly.extend([BUSY, BUSY])

    shown = run("jobs")

    assert shown.exit_code == 0
    assert shown.stderr.count("trying again") == 1


def test_an_answer_that_is_not_understood_is_70(run, service):
    service.unruly.append(Answer(raw=b"<html>"))

    assert run("jobs").exit_code == 70


def test_errors_are_json_when_json_is_asked_for(run, service):
    service.unruly.append(BUSY)

    shown = run("jobs", "--retry-timeout", "1", "--json")
    missing = run("status", str(uuid4()), "--json")

    assert shown.stderr == ""
    assert missing.stdout == ""
    assert json.loads(missing.stderr)["code"] == "job_not_found"


def test_an_address_that_is_none_is_a_mistake_in_usage(run):
    shown = run("jobs", "--url", "localhost")

    assert shown.exit_code == 2
    assert "http://127.0.0.1:8081" in shown.stderr


def test_logs_show_time_level_and_text(run, service):
    job_id = service.add()
    service.say(job_id, "page loaded", "  \x1b[31mred\tand a tab")

    shown = run("logs", job_id)

    assert shown.exit_code == 0
    first, second = shown.stdout.splitlines()
    assert first.endswith("  1  INFO     page loaded")
    assert second.endswith("INFO        [31mred\tand a tab")


def test_logs_of_silent_job_print_note_to_stderr(run, service):
    job_id = service.add()

    shown = run("logs", job_id)

    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "No log output.\n")
    assert run("logs", job_id, "--attempt", "2").stderr == "No log output matches.\n"
    assert run("logs", job_id, "--json").output == ""


def test_logs_of_failed_silent_job_lead_to_its_error(run, service):
    job_id = service.add(status="failed", error="KeyError: 'rate'")

    shown = run("logs", job_id)

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "The job failed: KeyError: 'rate'" in shown.stderr
    assert f"show {job_id}" in shown.stderr


def test_logs_are_written_to_a_file(run, service, tmp_path):
    job_id = service.add()
    service.say(job_id, "page loaded")

    shown = run("logs", job_id, "-o", str(tmp_path / "job.log"))

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert (tmp_path / "job.log").read_text(encoding="utf-8").endswith("  1  INFO     page loaded\n")


def test_logs_of_many_lines_are_read_page_by_page(run, service):
    job_id = service.add()
    service.say(job_id, *(f"line {n}" for n in range(2500)))

    assert len(run("logs", job_id).stdout.splitlines()) == 2500
    assert run("logs", job_id, "--tail", "2").stdout.splitlines()[0].endswith("line 2498")


def test_logs_follow_until_job_end_across_outage(run, service):
    job_id = service.add()
    service.say(job_id, "one", "two")
    service.unruly.extend([None, BUSY, BUSY])
    service.later[job_id] = [["three"], [], ["four"]]

    shown = run("logs", job_id, "-f", "--retry-timeout", "0", "--tail", "1", "--level", "info", "--json")

    assert [json.loads(line)["line"] for line in shown.stdout.splitlines()] == ["two", "three", "four"]
    assert shown.stderr.count("still following") == 1
    assert shown.exit_code == 0
    queries = [asked.query for asked in service.asked]
    assert queries[0] == {"tail": ["1"], "level": ["INFO"]}
    assert queries[1]["wait"] == ["5.0"]
    assert "wait" not in queries[2]  # after an outage: too many may have been waiting


def test_part_of_an_id_is_enough_where_one_job_has_it(shell: Shell):  # noqa: F811
    made = shell("trigger", "t", "--queue", "q", "--lock-key", "k", "--json").stdout
    job_id = json.loads(made)["job_id"]

    for part in (job_id[:13], job_id[:13].upper(), f"{job_id[:8]}…{job_id[-4:]}", f"{job_id[:8]}..{job_id[-4:]}"):
        assert json.loads(shell("status", part, "--json").output)["job_id"] == job_id
    assert json.loads(shell("why", job_id[:13], "--json").output)["job_id"] == job_id
    assert job_id in shell("cancel", job_id[:13]).output
    assert "no job has an id like 00000000" in shell("status", "00000000", code=3).output
    assert "eight or more of its first digits" in shell("status", "0192", code=2).output


def test_part_that_two_ids_have_is_refused_with_both(shell: Shell):  # noqa: F811
    first, second = (
        json.loads(shell("trigger", "t", "--queue", "q", "--lock-key", "k", "--json").stdout)["job_id"] for _ in "ab"
    )
    assert first[:8] == second[:8], "ids of one minute begin alike"

    refused = shell("status", first[:8], code=2).output

    assert "is not the id of one job" in refused
    assert first in refused
    assert second in refused
