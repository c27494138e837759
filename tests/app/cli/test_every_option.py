"""Every command that ends, with each of its options, against the real API or on a real PostgreSQL: as text, and as
JSON. A stand-in answers what its writer thought of."""

from __future__ import annotations

import json
import logging
import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from string import Template

import click
import pytest
from werkzeug.serving import make_server

from dataloader.app.cli.command import cli
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.remote import RemoteCommand, _connect
from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.app.cli.conftest import Run

UNKNOWN = "00000000-0000-0000-0000-000000000001"
PARTS = {
    "FILTER": """--job-id $job --idempotency-key k --queue q --status queued --wait-state scheduled --task t
        --lock-key l --partition-key p --producer me --consumer-group us --tag a --fingerprint 'E a.py:f' --warnings
        --created-from 2030-01-01 --created-to 2030-01-02 --started-from 2030-01-01 --started-to 2030-01-02
        --finished-from 2030-01-01 --finished-to 2030-01-02 --text x --args customer:1 --error x --worker w""",
    "SLICES": """--from 2030-01-01 --to 2030-01-03 --unit day --zone UTC --mode all --newest-first --concurrency 1
        --priority 9 --queue q --lock-key 'l:{partition}' --stop-after 2 --note why --idempotency-key b
        --arg 'a={partition}' --args '{"b": 2}' --args-file $args""",
    "TIMES": "--zone UTC --overlap skip --catch-up all --grace 60 --catch-up-max 5 --catch-up-window 1h",
    "TEMPLATE": """--queue q --lock-key l --priority 5 --max-attempts 2 --time-limit 1m --lease-ttl 1m --fair-key f
        --need any --limits '{"w": 1}' --retry '{"kind": "fixed", "seconds": 5}' --arg day=1 --args '{"b": 2}'
        --args-file $args --starts 2030-01-01 --ends 2030-02-01 --jitter 5 --gap skip --fold second
        --exclude 2030-01-05""",
    "UNKNOWN": UNKNOWN,
}
# A line is a command, `NAME = ` keeps the first id of its output, `N: ` is an exit code other than 0.
COMMANDS = """
job = trigger t --queue q --lock-key l --idempotency-key k --partition-key p --priority 5 --available-at 'in 1h'
    --max-attempts 2 --lease-ttl 1m --producer me --consumer-group us --time-limit 1m --fair-key f --tag a --tag b
    --retry '{"kind": "fixed", "seconds": 5}' --limits '{"w": 1}' --logical-at 2030-01-01 --start-within 2h
    --interval-start 2030-01-01 --interval-end 2030-01-02 --arg a=1 --args '{"b": 2}' --args-file $args
trigger t --live-key live --expires-at 'in 2h' --available-at 'in 1h'
trigger t --live-key live
trigger t --throttle '{"key": "x", "per_sec": 60}'
trigger t --debounce '{"key": "x", "wait_sec": 60}'
4: trigger t --strict
trigger t --from $lines --queue q
status $job
show $job
why $job
why t
where $job --all --watch
account $job
edit $job --priority 6 --available-at 'in 2h' --args '{"a": 2}' --max-attempts 3 --lease-ttl 2m --time-limit 2m
clone $job --queue q --args '{"a": 3}' --priority 7 --idempotency-key c
events $job --after 0 --limit 2
jobs $FILTER --limit 5
failures --task t --queue q --since 2030-01-01 --until 2030-01-02 --limit 5
cancel $job
1: status $job --watch
1: trigger t --queue q --idempotency-key k --arg a=1 --args '{"b": 2}' --args-file $args --watch
retry $job
bulk cancel $FILTER --dry-run
bulk retry --task t --expected 9 --yes
bulk reprioritise --all --priority 5 --yes
bulk = bulk redrive --all --per-minute 60 --max-jobs 5 --args-patch '{"a": 1}' --yes
bulk stop $bulk
bulk list
cancel $job
graph = graphs trigger $graph_file
graphs list --name g --limit 5
graphs show $graph
graphs cancel $graph
graphs retry $graph
backfill = backfill t $SLICES
backfill t --partition-key 2030-01-01 --queue q --dry-run
backfills list --task t --limit 5
backfills show $backfill
backfills edit $backfill --concurrency 3 --note x
backfills pause $backfill
backfills resume $backfill
backfills cancel $backfill --running
1: backfills show $backfill --watch
1: backfill t $SLICES --watch
backfills retry $backfill
slices t --state failed --after 2030-01-01 --limit 5
schedules create s --task t --cron '0 6 * * *' --paused $TIMES $TEMPLATE
schedules create every --task t --every 2h --anchor 2030-01-01
    --partitions '{"unit": "day", "start": "2030-01-01"}'
schedules create after --task t --after d --after e
schedules edit s --task u --every 3h --anchor 2030-01-01 $TIMES $TEMPLATE
schedules edit s --cron @daily --partitions '{"unit": "day", "start": "2030-01-01"}'
schedules edit after --after d
schedules delete after
schedules list --task t
schedules show s
schedules pause s --note why
schedules resume s --catch-up
schedules preview every --limit 2 --from 2030-01-01
schedules run every --at 2030-01-05
schedules run every --at 2030-01-05 --again
schedules firings every --before 2031-01-01 --limit 5
4: schedules reset s priority
4: schedules adopt s
schedules export
schedules apply $schedules --dry-run
schedules apply $schedules --prune
3: datasets d --limit 5
datasets --limit 5
checks t --name rows --limit 5
targets list
queues
queue q --pause --create --concurrency 2 --per-worker 1 --fair args.tenant --share 0.5 --weight acme=3 --note why
queue q --drain
queue q --open
workers
3: workers --drain $UNKNOWN
3: workers --undrain $UNKNOWN
3: workers --drain-host nowhere
3: workers --undrain-host nowhere
limits set w --concurrency 2 --rate 5/1m --burst 3 --note why
limits list
limits show w
limits delete w
breakers set t --create --failures 3 --window 10m --resume 5m
breakers pause t --create --note why
breakers resume t --create --note why
breakers list
breakers show t
breakers delete t
scaling --queue q --target-wait 30s
top --queue q --task t --limit 5
costs --days 2 --task t
search-logs --text x --level INFO --task t --since 2030-01-01 --until 2030-01-02 --limit 5
task-numbers --period 7d
rule = alerts create r failure_rate --threshold 0.5 --queue q --task t --window 1h --min-runs 5
alerts create r2 stale_dataset --threshold 1h --dataset d --by 09:00 --zone UTC
alerts edit $rule --threshold 0.4 --window 2h --min-runs 3 --off
alerts edit $rule --on
alerts mute $rule --for 30m
alerts mute $rule --until 'in 1h'
alerts unmute $rule
alerts list --all
alerts rules
3: alerts acknowledge $UNKNOWN
alerts test
alerts delete $rule
hook = webhooks create https://hooks.example.com/x --event job.failed --queue q --task t --description d --format json
    --idempotency-key w
webhooks edit $hook --to https://hooks.example.com/y --event job.lost --queue '' --task '' --description ''
    --format json --off
webhooks edit $hook --on
webhooks rotate $hook --overlap 1h
ping = webhooks ping $hook
webhooks deliveries --webhook $hook --job $UNKNOWN --state pending --before $UNKNOWN --limit 5
webhooks delivery $ping
webhooks redeliver $ping
webhooks redeliver --webhook $hook
webhooks list
webhooks delete $hook
audit --action trigger_job --actor me --key-id x --subject job --subject-id x --created-from 2030-01-01
    --created-to 2030-01-02 --triggers folded --before 5 --limit 5
logs $job --tail 5 --level INFO --attempt 1 --stream log --follow --output $log
delete $job
"""
# Of this process, in the same form.
LOCAL_COMMANDS = """
migrate --lock-wait 5s
migrate --roles
config
config --docs
config --dsn
tasks
prune --dry-run
prune
deploy r1 --min-workers 0 --wait --timeout 5s
drain --self --wait --timeout 5s
keys create admin --scope admin --expires 90d
keys create team --scope trigger --scope read --task t --queue q --allow-lockout
keys list
keys rotate admin --overlap 1h
keys rotate team --overlap 0
keys revoke team
targets schema warehouse
4: effects begin
4: effects end --position 1 --final --result 2
migrate --uninstall --yes --force
"""
NOT_HERE = {"watch", "doctor"}  # one ends at Ctrl-C alone, the other with a code by the state of the server
PROCESSES = {"serve", "dev", "worker", "demo", "psql", "run", "new-pipeline", "completion"}
LINES = Template(re.sub(r"\n +", " ", COMMANDS)).safe_substitute(PARTS).replace("\n        ", " ").strip().splitlines()
ONE_DOCUMENT_A_LINE = ("logs", "search-logs")


@pytest.fixture
def service(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pool = Pool(dsn)
    app = create_app(JobQueue(pool), Pipelines(), WebOptions(version="0"), pool=pool)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("DL_URL", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()
    thread.join(10)
    pool.close()


@pytest.fixture
def names(tmp_path: Path) -> dict[str, str]:
    """The files that commands read or write, by the names in their lines."""
    job = {"task": "t", "queue": "q", "lock_key": "l"}
    contents = {
        "args": {"c": 3},
        "lines": {**job, "task": "u"},
        "graph_file": {"name": "g", "jobs": [{**job, "key": "a"}]},
        "schedules": {"schedules": [{"name": "f", "task": "t", "kind": "cron", "expression": "@daily"}]},
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    return {name: str(tmp_path / name) for name in (*contents, "log")}


def all_commands(command: click.Command = cli, *path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    for name in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), name)
        assert found is not None
        yield from all_commands(found, *path, name)


def own_options(command: click.Command) -> set[str]:
    common = {param.name for param in _connect.params}
    own = [p for p in command.params if isinstance(p, click.Option) and not p.hidden and p.name not in common]
    return {name for option in own for name in (option.opts[-1], *option.secondary_opts)}


@pytest.mark.parametrize("is_remote", [True, False])
def test_lines_have_each_option_of_each_command(is_remote: bool):
    commands = {
        path: own_options(command)
        for path, command in all_commands()
        if path not in NOT_HERE | PROCESSES and isinstance(command, RemoteCommand) == is_remote
    }
    shown: dict[str, set[str]] = {path: set() for path in commands}
    for line in LINES if is_remote else LOCAL_COMMANDS.strip().splitlines():
        words = re.sub(r"^(\w+ =|\d:) ", "", line).split()
        path = next(path for path in (" ".join(words[:2]), words[0]) if path in commands)
        shown[path] |= set(words)

    missing = {path: options - shown[path] for path, options in commands.items() if options - shown[path]}
    unused = [path for path, words in shown.items() if not words]
    assert not missing
    assert not unused


@pytest.fixture
def settings(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    handlers = logging.getLogger().handlers[:]
    monkeypatch.setenv("DL_DB_DSN", dsn)
    monkeypatch.setenv("DL_PIPELINES", "dataloader.pipelines.noop")
    yield
    logging.getLogger().handlers[:] = handlers


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_each_option_of_local_command_is_understood(run: Run, settings: None, as_json: bool):
    commands = dict(all_commands())
    for line in LOCAL_COMMANDS.strip().splitlines():
        expected, words = (int(line[0]), shlex.split(line[3:])) if line[1] == ":" else (0, shlex.split(line))
        command = commands[next(path for path in (" ".join(words[:2]), words[0]) if path in commands)]
        has_json = as_json and "json" in {option.opts[-1].lstrip("-") for option in command.params}

        done = run(*words, *(["--json"] if has_json else []))

        assert done.exit_code == expected, (line, done.output, done.exception)
        if has_json and not {"--roles", "--docs"} & {*words}:  # these print SQL and Markdown
            assert isinstance(json.loads(done.stdout), dict), line


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_each_option_is_understood(run: Run, service: None, names: dict[str, str], as_json: bool):
    for line in LINES:
        head, command = re.fullmatch(r"(\w+ = |\d: )?(.*)", line).groups()  # type: ignore[union-attr]
        words = shlex.split(Template(command).safe_substitute(names))

        done = run(*words, *(["--json"] if as_json else []))

        expected = int(head[0]) if head and head[0].isdigit() else 0
        assert done.exit_code == expected, (line, done.output, done.exception)
        if as_json and expected in (0, 1):
            documents = done.stdout.splitlines() if words[0] in ONE_DOCUMENT_A_LINE else [done.stdout]
            assert all(isinstance(json.loads(document), dict) for document in documents), line
        if head and head.endswith("= "):
            names[head.split()[0]] = re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", done.stdout)[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bulk cancel {id} --task t --yes", "BULK_ID is for `bulk stop`; cancel takes a filter, such as --job-id"),
        ("bulk list --task t", "`bulk list` takes no --task"),
        ("bulk list {id}", "BULK_ID is for `bulk stop`"),
        ("bulk stop {id} --yes", "`bulk stop` takes no --yes"),
        ("workers --drain-host a --undrain-host a", "give one of --drain, --undrain, --drain-host and --undrain-host"),
        ("workers --drain-host ''", "HOST is '', which is no name"),
        ("backfill t --partition-key a --from a --to b", "--partition-key names the slices; --from, --to,"),
        ("schedules create s --task t --every 1.5", "--every takes whole seconds"),
        ("schedules show ''", "NAME is '', which is no name"),
        ("limits delete ..", "NAME is '..', which is no name"),
        ("schedules pause a/b", "NAME is 'a/b', which is no name"),
        ("datasets 'a\nb'", "NAME is 'a\\nb', which is no name"),
        ("why ''", "QUEUE is '', which is no name"),
        ("trigger ''", "name a TASK"),
        ("migrate --roles --uninstall", "use one of them"),
        ("worker --queue q:0", "'q:0' is not QUEUE:THREADS, such as etl.default:2"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_options_that_contradict_are_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str, message: str, as_json: bool
):
    monkeypatch.setenv("DL_URL", "http://127.0.0.1:1")  # a request would be exit code 69
    has_json = as_json and not words.startswith("worker ")

    done = run(*shlex.split(words.format(id=UNKNOWN)), *(["--json"] if has_json else []))

    assert done.exit_code == ExitCode.USAGE
    assert not done.stdout
    if has_json:
        error = json.loads(done.stderr)
        assert (error["code"], error["errors"], message in error["detail"]) == ("usage", [], True)
    else:
        assert message in done.stderr


@pytest.mark.parametrize(
    "words", ["jobs --limit x --json", "jobs --nothing --json", "jobs --json --limit", "nothing --json"]
)
def test_command_line_that_cannot_be_read_is_json_too(run: Run, words: str):
    done = run(*words.split())

    assert done.exit_code == ExitCode.USAGE
    assert json.loads(done.stderr)["code"] == "usage"


def test_values_that_no_request_can_have_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DL_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("DL_API_KEY", raising=False)
    tried: set[str] = set()
    for path, command in all_commands():
        if not isinstance(command, RemoteCommand) or path in NOT_HERE:
            continue
        arguments = [UNKNOWN for param in command.params if isinstance(param, click.Argument)]
        options = [param.opts[-1] for param in command.params if isinstance(param, click.Option) and not param.is_flag]
        for name in {*options} - tried - {"--output", "--key-file", "--from"}:
            tried.add(name)
            for value in ("nan", "\udcff", '{"a": 1e999}', "99999999w"):
                done = run(*path.split(), *arguments, f"{name}={value}", "--retry-timeout", "0")

                assert isinstance(done.exception, SystemExit), (path, name, value, done.exception)
                assert done.exit_code in (ExitCode.USAGE, ExitCode.UNAVAILABLE), (path, name, value, done.output)
    assert len(tried) > 100
