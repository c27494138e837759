import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest
from psycopg2 import sql
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from dataloader.pipelines.contract import Stop, StopReason
from dataloader.pipelines.toolkit.errors import NoSuchTarget, UnsuitableValue
from dataloader.pipelines.toolkit.load import Loaded, batches, copy_rows, upsert
from dataloader.pipelines.toolkit.rejects import Rejects


def numbers(count, *, start=1):
    return ((n, f"row {n}") for n in range(start, start + count))


@pytest.fixture
def items(db):
    db.run("CREATE TABLE items (id int PRIMARY KEY, name text, price numeric, seen timestamptz DEFAULT now())")
    return db


def test_rows_are_appended_and_counted(items):
    loaded = copy_rows(items.conn, "items", ["id", "name"], numbers(12_345))

    assert loaded == Loaded(rows=12_345, inserted=12_345)
    assert items.rows("SELECT count(*), min(name), bool_and(seen IS NOT NULL) FROM items") == [(12_345, "row 1", True)]


def test_the_commit_is_the_callers(items, another):
    copy_rows(items.conn, "items", ["id"], [(1,)])

    assert another.value("SELECT count(*) FROM items") == 0
    items.conn.commit()
    assert another.value("SELECT count(*) FROM items") == 1


def test_autocommit_load_is_one_transaction(items, another):
    items.conn.autocommit = True

    with pytest.raises(psycopg2.errors.UniqueViolation):
        copy_rows(items.conn, "items", ["id"], [(1,), (1,)])
    assert another.value("SELECT count(*) FROM items") == 0

    assert upsert(items.conn, "items", ["id"], ["id"], [(1,)]).inserted == 1
    assert another.value("SELECT count(*) FROM items") == 1


def test_in_autocommit_a_transaction_the_caller_began_is_joined(items, another):
    items.conn.autocommit = True
    with items.conn.cursor() as cur:
        cur.execute("BEGIN")
        upsert(items.conn, "items", ["id"], ["id"], [(1,)])
        cur.execute("ROLLBACK")

    assert another.value("SELECT count(*) FROM items") == 0


def test_no_rows_are_no_fault(items):
    assert copy_rows(items.conn, "items", ["id"], []) == Loaded(rows=0, inserted=0)
    assert upsert(items.conn, "items", ["id"], ["id"], []) == Loaded(rows=0, inserted=0)


def test_every_batch_is_reported(items):
    fake_context: list[int] = []

    copy_rows(items.conn, "items", ["id", "name"], numbers(12_500), on_batch=fake_context.append, batch=5_000)

    assert fake_context == [5_000, 10_000]


def test_a_batch_needs_rows(items):
    with pytest.raises(ValueError, match="at least one row"):
        copy_rows(items.conn, "items", ["id"], [], batch=0)
    with pytest.raises(ValueError, match="at least one row"):
        next(batches([], 0))


def test_batches_cut_any_iterable():
    assert list(batches(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("load", ["copy", "upsert"])
@pytest.mark.parametrize("autocommit", [True, False])
def test_stop_during_copy_is_raised_and_connection_survives(items, fake_context, load, autocommit):
    items.conn.autocommit = autocommit
    ctx = fake_context(stop_at=5)

    with pytest.raises(Stop):
        if load == "copy":
            copy_rows(items.conn, "items", ["id", "name"], numbers(10**9), ctx=ctx)
        else:
            upsert(items.conn, "items", ["id", "name"], ["id"], numbers(10**9), ctx=ctx)

    if autocommit:
        assert items.conn.info.transaction_status == TRANSACTION_STATUS_IDLE
    items.conn.rollback()
    assert items.value("SELECT count(*) FROM items") == 0


def test_what_the_source_raises_comes_out_as_itself(items):
    def broken():
        yield (1, "one")
        raise LookupError("the source broke")

    with pytest.raises(LookupError, match="the source broke") as raised:
        copy_rows(items.conn, "items", ["id", "name"], broken())

    assert raised.value.__cause__ is None


def test_what_on_batch_raises_ends_the_load(items):
    def report(_rows):
        raise Stop(StopReason.CANCEL)

    with pytest.raises(Stop):
        copy_rows(items.conn, "items", ["id", "name"], numbers(10), on_batch=report, batch=5)


def test_a_connection_lost_in_the_middle_is_the_drivers_error(items, another):
    def cut_off():
        yield from numbers(10_000)
        another.run("SELECT pg_terminate_backend(%s)", items.conn.info.backend_pid)
        yield from numbers(10**6, start=10_001)

    with pytest.raises(psycopg2.OperationalError):
        copy_rows(items.conn, "items", ["id", "name"], cut_off())

    assert another.value("SELECT count(*) FROM items") == 0


def test_connection_lost_in_autocommit_is_reported(items, another):
    items.conn.autocommit = True

    def cut_off():
        yield (1, "one")
        another.run("SELECT pg_terminate_backend(%s)", items.conn.info.backend_pid)
        raise LookupError("found while the connection was gone")

    with pytest.raises(LookupError):
        copy_rows(items.conn, "items", ["id", "name"], cut_off())


def test_rows_that_do_not_fit_are_counted_apart(items):
    rejects = Rejects(limit=10)
    rows: list[dict[str, object]] = [{"id": 1, "name": "one"}, {"id": 2, "name": "t\0o"}, {"id": 3}]

    loaded = copy_rows(items.conn, "items", ["id", "name"], rows, rejects=rejects)

    assert loaded == Loaded(rows=1, inserted=1, rejected=2)
    assert [bad.place for bad in rejects.first] == ["row 2, column 'name'", "row 3, column 'name'"]


def test_unsuitable_row_without_rejects_ends_the_load(items):
    with pytest.raises(UnsuitableValue, match=r"row 3000, column 'name': it holds a NUL"):
        copy_rows(items.conn, "items", ["id", "name"], [*numbers(2_999), (3_000, "\0")])


def test_names_are_quoted_whatever_they_are(db):
    db.run('CREATE SCHEMA "o\'clock; --"')
    db.run('CREATE TABLE "o\'clock; --"."Select.""all" ("from" int PRIMARY KEY, "%s {}" text)')
    table = sql.Identifier("o'clock; --", 'Select."all')

    assert copy_rows(db.conn, table, ["from", "%s {}"], [(1, "a")]).rows == 1
    assert upsert(db.conn, table, ["from", "%s {}"], ["from"], [(1, "b")]).updated == 1
    assert db.rows('SELECT * FROM "o\'clock; --"."Select.""all"') == [(1, "b")]


def test_a_table_is_found_by_schema_or_on_the_search_path(db):
    db.run("CREATE SCHEMA quotes; CREATE TABLE quotes.quote (id int)")
    copy_rows(db.conn, "quotes.quote", ["id"], [(1,)])
    db.run("SET search_path = quotes")
    copy_rows(db.conn, "quote", ["id"], [(2,)])

    assert db.rows("SELECT id FROM quotes.quote ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("table", "columns", "fake_context"),
    [
        ("nowhere.items", ["id"], 'no table "nowhere"."items"'),
        ("items", ["id", "nam"], "has no column nam; it has id, name, price, seen"),
        ("items", ["id", "id"], "once"),
        ("items", [], "once"),
    ],
)
def test_a_target_that_is_not_there_is_named(items, table, columns, fake_context):
    with pytest.raises(NoSuchTarget, match=fake_context):
        copy_rows(items.conn, table, columns, [])


def test_domains_and_partitions_are_loaded_like_plain_tables(db):
    db.run("CREATE DOMAIN doc AS jsonb CHECK (VALUE ? 'a')")
    db.run("CREATE TABLE parts (id int PRIMARY KEY, d doc) PARTITION BY RANGE (id)")
    db.run("CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)")

    assert copy_rows(db.conn, "parts", ["id", "d"], [(1, {"a": True})]).rows == 1
    loaded = upsert(db.conn, "parts", ["id", "d"], ["id"], [(1, {"a": 1}), (2, {"a": 2})])

    assert (loaded.inserted, loaded.updated) == (1, 1)


class TestUpsert:
    def test_new_changed_equal_and_repeated_rows_are_each_counted(self, items):
        copy_rows(items.conn, "items", ["id", "name"], [(1, "old"), (2, "same")])

        loaded = upsert(
            items.conn, "items", ["id", "name"], ["id"], [(1, "first"), (2, "same"), (3, "new"), (1, "last")]
        )

        assert loaded == Loaded(rows=4, inserted=1, updated=1, unchanged=1, duplicates=1)
        assert items.rows("SELECT id, name FROM items ORDER BY id") == [(1, "last"), (2, "same"), (3, "new")]

    def test_running_twice_changes_nothing(self, items):
        upsert(items.conn, "items", ["id", "name"], ["id"], numbers(6_000))
        before = items.rows("SELECT xmin::text, * FROM items ORDER BY id")

        again = upsert(items.conn, "items", ["id", "name"], ["id"], numbers(6_000))

        assert again == Loaded(rows=6_000, inserted=0, unchanged=6_000)
        assert items.rows("SELECT xmin::text, * FROM items ORDER BY id") == before

    def test_null_and_scale_are_changes_too(self, items):
        upsert(items.conn, "items", ["id", "price"], ["id"], [(1, "1.0"), (2, None), (3, "2")])

        assert upsert(items.conn, "items", ["id", "price"], ["id"], [(1, "1.00"), (2, "5"), (3, None)]).updated == 3

    def test_of_many_repeats_the_last_one_counts(self, items):
        rows = [(n % 10, f"round {n // 10}") for n in range(20_000)]

        loaded = upsert(items.conn, "items", ["id", "name"], ["id"], rows)

        assert (loaded.inserted, loaded.duplicates) == (10, 19_990)
        assert items.rows("SELECT DISTINCT name FROM items") == [("round 1999",)]

    def test_types_without_equality_are_compared_all_the_same(self, db):
        db.run("CREATE TABLE t (id int PRIMARY KEY, j json, p point, x polygon)")
        columns, row = ["id", "j", "p", "x"], (1, {"a": 1}, "(1,2)", "((0,0),(1,1))")

        assert upsert(db.conn, "t", columns, ["id"], [row]).inserted == 1
        assert upsert(db.conn, "t", columns, ["id"], [row]).unchanged == 1
        assert upsert(db.conn, "t", columns, ["id"], [(1, {"a": 1}, "(1,3)", "((0,0),(1,1))")]).updated == 1

    def test_a_key_of_all_columns_only_inserts(self, db):
        db.run("CREATE TABLE pairs (a int, b text, UNIQUE (b, a))")

        assert upsert(db.conn, "pairs", ["a", "b"], ["a", "b"], [(1, "x"), (1, "x")]).inserted == 1
        assert upsert(db.conn, "pairs", ["a", "b"], ["a", "b"], [(1, "x")]).unchanged == 1

    def test_several_in_one_transaction(self, items):
        for _ in range(3):
            upsert(items.conn, "items", ["id"], ["id"], [(1,)])

        assert items.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'dl_arriving%'") == 0

    def test_a_null_in_the_key_is_named(self, db):
        db.run("CREATE TABLE t (k int UNIQUE, v int)")

        with pytest.raises(UnsuitableValue, match=r"row 3, column 'k': NULL cannot be part of a key"):
            upsert(db.conn, "t", ["v", "k"], ["k"], [(1, 1), (2, 2), (3, None)])

    def test_key_without_constraint_is_refused_before_rows(self, items):
        rows_read = threading.Event()

        def rows():
            rows_read.set()
            yield (1, "a")

        with pytest.raises(NoSuchTarget, match=r"no unique constraint over \(name\)"):
            upsert(items.conn, "items", ["id", "name"], ["name"], rows())

        assert not rows_read.is_set()

    @pytest.mark.parametrize("key", [[], ["price"]])
    def test_the_key_is_among_the_columns(self, items, key):
        with pytest.raises(NoSuchTarget, match="must be among the columns"):
            upsert(items.conn, "items", ["id", "name"], key, [])

    def test_two_loads_in_opposite_orders_do_not_deadlock(self, items):
        def load(rows):
            with psycopg2.connect(items.dsn) as conn:
                upsert(conn, "items", ["id", "name"], ["id"], rows)
            conn.close()

        up = [(n, "up") for n in range(3_000)]
        down = [(n, "down") for n in reversed(range(3_000))]
        with ThreadPoolExecutor(2) as pool:
            for _ in range(3):
                list(pool.map(load, [up, down]))

        assert items.value("SELECT count(*) FROM items") == 3_000
