import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from dataloader.pipelines.contract import Stop
from dataloader.pipelines.toolkit.errors import NotReplaceable, TargetBusy, TooFewRows
from dataloader.pipelines.toolkit.load import Loaded, replace_table
from tests.support.databases import another_role

RICH = """
CREATE SCHEMA opu;
CREATE UNLOGGED TABLE opu.brief (
    id int,
    code text COLLATE "C" NOT NULL DEFAULT 'none',
    amount numeric(12, 2) CONSTRAINT positive CHECK (amount > 0),
    doubled numeric GENERATED ALWAYS AS (amount * 2) STORED,
    during int4range,
    loaded_at timestamptz DEFAULT now(),
    CONSTRAINT brief_key PRIMARY KEY (id) INCLUDE (code),
    CONSTRAINT one_code UNIQUE (code, id) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT apart EXCLUDE USING gist (during WITH &&)
) WITH (fillfactor = 70, autovacuum_enabled = false);
CREATE INDEX "odd {{}} %s name" ON opu.brief (lower(code)) WHERE amount > 1 AND code LIKE 'a%%';
CREATE UNIQUE INDEX brief_amount ON opu.brief (amount DESC NULLS LAST, id) WITH (fillfactor = 50);
COMMENT ON TABLE opu.brief IS 'it''s {{the}} %s brief';
COMMENT ON COLUMN opu.brief.code IS 'a code';
COMMENT ON CONSTRAINT brief_key ON opu.brief IS 'the key';
COMMENT ON CONSTRAINT positive ON opu.brief IS 'more than nothing';
COMMENT ON INDEX opu.brief_amount IS 'by amount';
COMMENT ON INDEX opu.brief_key IS 'index of the key';
GRANT SELECT ON opu.brief TO {reader}, PUBLIC;
GRANT INSERT, UPDATE ON opu.brief TO {writer} WITH GRANT OPTION;
GRANT UPDATE (code) ON opu.brief TO {reader};
ALTER DEFAULT PRIVILEGES IN SCHEMA opu GRANT DELETE ON TABLES TO {reader};
INSERT INTO opu.brief (id, code, amount) SELECT n, 'old', n FROM generate_series(1, 100) AS n;
"""

# Everything about a table that its users can see, but for its rows and its oid.
LOOKS = """
SELECT 'table', relname, relpersistence::text, relowner::regrole::text, reloptions::text,
       obj_description(oid, 'pg_class')
  FROM pg_class WHERE oid = %(t)s::regclass
UNION ALL
SELECT 'column', attname, format_type(atttypid, atttypmod), concat(attnotnull, attgenerated, attidentity),
       pg_get_expr(adbin, adrelid), col_description(attrelid, attnum)
  FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
 WHERE attrelid = %(t)s::regclass AND attnum > 0
UNION ALL
SELECT 'constraint', conname, pg_get_constraintdef(oid), '', '', obj_description(oid, 'pg_constraint')
  FROM pg_constraint WHERE conrelid = %(t)s::regclass
UNION ALL
SELECT 'index', i.relname, pg_get_indexdef(i.oid), i.reloptions::text, '', obj_description(i.oid, 'pg_class')
  FROM pg_index JOIN pg_class AS i ON i.oid = indexrelid WHERE indrelid = %(t)s::regclass
UNION ALL
SELECT 'grant', '', grantee::text, privilege_type, is_grantable::text, NULL
  FROM pg_class, aclexplode(relacl) WHERE oid = %(t)s::regclass
UNION ALL
SELECT 'column grant', attname, grantee::text, privilege_type, is_grantable::text, NULL
  FROM pg_attribute, aclexplode(attacl) WHERE attrelid = %(t)s::regclass
ORDER BY 1, 2, 3, 4
"""


def properties(db, table):
    with db.conn.cursor() as cur:
        cur.execute(LOOKS, {"t": table})
        return cur.fetchall()


def oid(db, table):
    return db.value("SELECT %s::regclass::oid", table)


@pytest.fixture
def rich(db):
    roles = {name: f"{db.conn.info.dbname}_{name}" for name in ("reader", "writer")}
    with another_role(db.dsn, roles["reader"]), another_role(db.dsn, roles["writer"]):
        with db.conn.cursor() as cur:
            cur.execute(RICH.format(**roles).replace("%%", "%"))
        db.conn.commit()
        yield db
        db.conn.rollback()


@pytest.fixture
def plain(db):
    db.run("CREATE TABLE plain (id int PRIMARY KEY, name text)")
    db.run("INSERT INTO plain SELECT n, 'old' FROM generate_series(1, 1000) AS n")
    return db


def new_rows(count):
    return [(n, "new") for n in range(count)]


def test_the_rows_become_the_whole_content(plain, another):
    loaded = replace_table(plain.conn, "plain", ["id", "name"], new_rows(2_500))

    assert loaded == Loaded(rows=2_500, inserted=2_500)
    plain.conn.commit()
    assert another.rows("SELECT count(*), min(name) FROM plain") == [(2_500, "new")]


def test_everything_on_a_plain_table_survives_the_swap(rich):
    before, was = properties(rich, "opu.brief"), oid(rich, "opu.brief")

    replace_table(rich.conn, "opu.brief", ["id", "code", "amount"], [(n, f"a{n}", n) for n in range(1, 301)])
    rich.conn.commit()

    assert oid(rich, "opu.brief") != was
    assert properties(rich, "opu.brief") == before
    assert rich.rows("SELECT count(*), max(doubled), bool_and(loaded_at IS NOT NULL) FROM opu.brief") == [
        (300, 600, True)
    ]
    assert rich.rows("SELECT relname FROM pg_class WHERE relname LIKE 'dl_aside%'") == []


def test_a_swap_repeated_looks_the_same_again(rich):
    before = properties(rich, "opu.brief")

    for _ in range(2):
        replace_table(rich.conn, "opu.brief", ["id", "code", "amount"], [(1, "a", 1)])

    assert properties(rich, "opu.brief") == before


def test_the_new_table_is_known_to_the_planner_at_once(plain):
    replace_table(plain.conn, "plain", ["id", "name"], new_rows(3_000))

    assert plain.value("SELECT reltuples FROM pg_class WHERE relname = 'plain'") == 3_000


KEEPS_TO_ITS_PLACE = {
    "view": "CREATE VIEW seen AS SELECT * FROM plain",
    "materialized view": "CREATE MATERIALIZED VIEW seen AS SELECT * FROM plain",
    "row type": "CREATE TABLE other (p plain)",
    "function": "CREATE FUNCTION f() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM plain; END",
    "identity": "ALTER TABLE plain ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY",
    "serial": "ALTER TABLE plain ADD COLUMN n bigserial",
    "foreign key out": "CREATE TABLE names (name text PRIMARY KEY); INSERT INTO names VALUES ('old'), ('new');"
    "ALTER TABLE plain ADD FOREIGN KEY (name) REFERENCES names",
    "foreign key to itself": "ALTER TABLE plain ADD COLUMN parent int REFERENCES plain",
    "trigger": "CREATE FUNCTION t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
    "CREATE TRIGGER t BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION t()",
    "statistics": "CREATE STATISTICS s ON id, name FROM plain",
    "statistics target": "ALTER TABLE plain ALTER name SET STATISTICS 10",
    "publication": "CREATE PUBLICATION p FOR TABLE plain",
    "replica identity": "ALTER TABLE plain REPLICA IDENTITY FULL",
    "clustered": "CLUSTER plain USING plain_pkey",
    "policy": "CREATE POLICY p ON plain USING (true); ALTER TABLE plain ENABLE ROW LEVEL SECURITY",
    "options of the key": "ALTER INDEX plain_pkey SET (fillfactor = 50)",
}


@pytest.mark.parametrize("extra", KEEPS_TO_ITS_PLACE.values(), ids=KEEPS_TO_ITS_PLACE)
def test_a_table_with_more_to_it_is_rewritten_in_its_place(plain, another, extra):
    plain.run(extra)
    before, was = properties(plain, "plain"), oid(plain, "plain")

    replace_table(plain.conn, "plain", ["id", "name"], new_rows(2_000))

    assert another.value("SELECT count(*) FROM plain WHERE name = 'old'") == 1_000  # no one waits, no one sees half
    plain.conn.commit()
    assert plain.rows("SELECT count(*), min(name) FROM plain") == [(2_000, "new")]
    assert oid(plain, "plain") == was
    assert properties(plain, "plain") == before


def test_a_partitioned_table_is_rewritten(db):
    db.run("CREATE TABLE parts (id int PRIMARY KEY, name text) PARTITION BY HASH (id)")
    db.run("CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    db.run("INSERT INTO parts VALUES (1, 'old'), (2, 'old')")

    replace_table(db.conn, "parts", ["id", "name"], new_rows(10))

    assert db.rows("SELECT count(*), min(name) FROM parts") == [(10, "new")]


CANNOT_BE_REPLACED = {
    "foreign key into it": ("CREATE TABLE other (id int REFERENCES plain ON DELETE CASCADE)", "use upsert"),
    "children": ("CREATE TABLE child () INHERITS (plain)", "child inherits from it"),
    "rule": ("CREATE RULE r AS ON DELETE TO plain DO INSTEAD NOTHING", "rule r rewrites"),
    "no table": ("ALTER TABLE plain RENAME TO base; CREATE VIEW plain AS SELECT * FROM base", "is not a table"),
}


@pytest.mark.parametrize(("extra", "fake_context"), CANNOT_BE_REPLACED.values(), ids=CANNOT_BE_REPLACED)
def test_unsafe_replacement_is_refused_before_reading_rows(plain, extra, fake_context):
    plain.run(extra)

    def rows():
        raise AssertionError("asked for a row")
        yield

    with pytest.raises(NotReplaceable, match=fake_context):
        replace_table(plain.conn, "plain", ["id", "name"], rows())

    plain.conn.rollback()
    assert plain.value("SELECT count(*) FROM plain") == 1_000


def test_row_level_security_refuses_a_replacement(plain):
    with another_role(plain.dsn) as role:
        plain.run(f"GRANT ALL ON plain TO {role}; ALTER TABLE plain ENABLE ROW LEVEL SECURITY")
        with (
            closing(psycopg2.connect(make_dsn(plain.dsn, user=role, password="x"))) as connection,
            pytest.raises(NotReplaceable, match="row level security"),
        ):
            replace_table(connection, "plain", ["id", "name"], new_rows(1))


def test_a_role_that_may_only_write_rows_can_replace_them(plain):
    with another_role(plain.dsn) as role:
        plain.run(f"GRANT SELECT, INSERT, DELETE, UPDATE ON plain TO {role}")
        with closing(psycopg2.connect(make_dsn(plain.dsn, user=role, password="x"))) as connection:
            replace_table(connection, "plain", ["id", "name"], new_rows(5))
            connection.commit()
        assert plain.value("SELECT count(*) FROM plain") == 5


@pytest.mark.parametrize("way", ["swap", "rewrite"])
class TestWhenItGoesWrong:
    @pytest.fixture(autouse=True)
    def the_way(self, plain, way):
        if way == "rewrite":
            plain.run("CREATE VIEW seen AS SELECT * FROM plain")

    def assert_untouched(self, another):
        assert another.rows("SELECT count(*), max(name) FROM plain") == [(1_000, "old")]
        assert another.rows("SELECT relname FROM pg_class WHERE relname LIKE 'dl_aside%'") == []

    def test_too_few_rows_replace_nothing(self, plain, another):
        plain.conn.autocommit = True

        with pytest.raises(TooFewRows, match=r"only 0 rows came for public\.plain and at least 1"):
            replace_table(plain.conn, "plain", ["id", "name"], [])

        self.assert_untouched(another)

    def test_an_empty_table_can_be_asked_for(self, plain, another):
        plain.conn.autocommit = True

        replace_table(plain.conn, "plain", ["id", "name"], [], at_least=0)

        assert another.value("SELECT count(*) FROM plain") == 0

    def test_lost_connection_keeps_old_rows_and_leaves_no_table(self, plain, another):
        def rows():
            yield from new_rows(20_000)
            another.run("SELECT pg_terminate_backend(%s)", plain.conn.info.backend_pid)
            yield from ((n, "new") for n in range(20_000, 10**6))

        with pytest.raises(psycopg2.OperationalError):
            replace_table(plain.conn, "plain", ["id", "name"], rows())

        self.assert_untouched(another)

    def test_a_stop_half_way_loses_nothing(self, plain, another, fake_context):
        plain.conn.autocommit = True

        with pytest.raises(Stop):
            replace_table(
                plain.conn, "plain", ["id", "name"], ((n, "") for n in range(10**9)), ctx=fake_context(stop_at=6)
            )

        self.assert_untouched(another)

    def test_a_broken_row_loses_nothing(self, plain, another):
        plain.conn.autocommit = True

        with pytest.raises(psycopg2.errors.UniqueViolation):
            replace_table(plain.conn, "plain", ["id", "name"], [(1, "a"), (1, "b")])

        self.assert_untouched(another)

    def test_lock_wait_lets_others_pass_and_times_out(self, plain, another):
        plain.conn.autocommit = True
        another.rows("BEGIN; LOCK TABLE plain IN ROW EXCLUSIVE MODE; SELECT 1")

        with pytest.raises(TargetBusy, match="in use by others"):
            replace_table(plain.conn, "plain", ["id", "name"], new_rows(1), lock_timeout_sec=0.5)

        self.assert_untouched(another)

    def test_it_waits_for_those_who_use_the_table(self, plain, another, fake_context):
        plain.conn.autocommit = True
        another.rows("BEGIN; LOCK TABLE plain IN ROW EXCLUSIVE MODE; SELECT 1")

        ctx = fake_context(on_sleep=lambda: another.run("ROLLBACK"))
        replace_table(plain.conn, "plain", ["id", "name"], new_rows(1), ctx=ctx)

        assert ctx.sleeps == [0.1]
        assert another.value("SELECT count(*) FROM plain") == 1
        assert plain.value("SHOW lock_timeout") == "0"

    def test_two_at_once_take_turns(self, plain, another):
        def load(name):
            conn = psycopg2.connect(plain.dsn)
            conn.autocommit = True
            replace_table(conn, "plain", ["id", "name"], ((n, name) for n in range(5_000)))
            conn.close()

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(load, ["one", "two"]))

        assert another.rows("SELECT count(*), count(DISTINCT name) FROM plain") == [(5_000, 1)]


def test_a_table_altered_while_it_was_loaded_is_left_alone(plain, another):
    plain.conn.autocommit = True

    def rows():
        yield (1, "new")
        another.run("CREATE INDEX late ON plain (name)")

    with pytest.raises(TargetBusy, match="was altered while"):
        replace_table(plain.conn, "plain", ["id", "name"], rows())

    assert another.value("SELECT count(*) FROM plain") == 1_000


def test_reader_sees_old_or_new_rows_at_any_snapshot(plain, another):
    """A reader of each isolation reads all the time; none ever sees fewer rows than a whole table."""
    seen, end = set(), threading.Event()

    def read(isolation):
        conn = psycopg2.connect(plain.dsn)
        conn.set_session(isolation_level=isolation)
        with conn.cursor() as cur:
            while not end.is_set():
                cur.execute("SELECT 1")  # a ssleepshot, taken before the table is looked up
                cur.execute("SELECT count(*), count(DISTINCT name) FROM plain")
                seen.add(cur.fetchone())
                conn.commit()
        conn.close()

    readers = [threading.Thread(target=read, args=[level]) for level in ("READ COMMITTED", "REPEATABLE READ")]
    for reader in readers:
        reader.start()
    plain.conn.autocommit = True
    for turn in range(6):
        replace_table(plain.conn, "plain", ["id", "name"], [(n, str(turn)) for n in range(1_000)])
    end.set()
    for reader in readers:
        reader.join(20)

    assert seen == {(1_000, 1)}


def test_snapshot_older_than_the_swap_is_not_empty(plain, another):
    another.rows("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    replace_table(plain.conn, "plain", ["id", "name"], new_rows(50))
    plain.conn.commit()

    assert another.value("SELECT count(*) FROM plain") == 50


def test_a_load_in_a_stricter_isolation_works_too(plain):
    plain.conn.set_session(isolation_level="SERIALIZABLE")

    assert replace_table(plain.conn, "plain", ["id", "name"], new_rows(50)).rows == 50


def test_a_query_prepared_before_the_swap_reads_the_new_table(plain, another):
    another.rows("PREPARE q AS SELECT count(*) FROM plain; EXECUTE q")
    replace_table(plain.conn, "plain", ["id", "name"], new_rows(7))
    plain.conn.commit()

    assert another.value("EXECUTE q") == 7
