"""Replaces the content of a table by a swap or a rewrite, and chooses between the two.

*Swap*: the rows go into a new table, which then takes the place and the name of the old one. Nothing is bloated,
and the target is locked only for the moment of the swap. *Rewrite*: DELETE and COPY into the table itself. Readers
never wait and everything that depends on the table stays; the space of the old rows is reused by later loads. A plain
table is swapped, and one with anything that might not survive a swap is rewritten.

Either way is one transaction: a load that dies leaves nothing to clean, and readers see the old rows until the
commit. The new rows are loaded with FREEZE; otherwise a reader whose snapshot is older than the commit would see the
new table as empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import cursor

from dataloader.pipelines.toolkit.errors import NotReplaceable, TargetBusy
from dataloader.pipelines.toolkit.safepoint import SafePoint
from dataloader.pipelines.toolkit.target import CopyInput, Loaded, Target, copy_from

_LOCK_TIMEOUT = "300ms"  # later readers queue behind our lock request, so it is short and repeated
_MIN_RETRY_SEC = 0.1
_MAX_RETRY_SEC = 5.0

# Reasons to refuse: a deleted row would take rows elsewhere with it, or not all rows could be deleted.
_FIND_REASONS_TO_REFUSE = """
SELECT 'it is not a table' FROM pg_class WHERE oid = %(oid)s AND relkind NOT IN ('r', 'p')
UNION ALL
SELECT format('foreign key %%s of %%s refers to it; use upsert', conname, conrelid::regclass)
  FROM pg_constraint WHERE contype = 'f' AND confrelid = %(oid)s AND conrelid <> %(oid)s AND conparentid = 0
UNION ALL
SELECT format('%%s inherits from it', inhrelid::regclass)
  FROM pg_inherits JOIN pg_class AS parent ON parent.oid = inhparent
 WHERE inhparent = %(oid)s AND parent.relkind = 'r'
UNION ALL
SELECT 'row level security may hide some of its rows from this role' WHERE row_security_active(%(oid)s::oid)
UNION ALL
SELECT format('rule %%s rewrites what is done to it', rulename) FROM pg_rewrite WHERE ev_class = %(oid)s
"""

# Reasons to rewrite: a swap might lose something that depends on the table.
_FIND_REASONS_TO_REWRITE = """
SELECT 'it is partitioned, a partition, inherits, is temporary, typed, clustered by policy or stored in its own way'
  FROM pg_class AS c
 WHERE c.oid = %(oid)s
   AND (c.relkind <> 'r' OR c.relispartition OR c.relpersistence = 't' OR c.reloftype <> 0 OR c.relrowsecurity
        OR c.relforcerowsecurity OR c.relreplident <> 'd' OR c.reltablespace <> 0
        OR c.relam <> (SELECT oid FROM pg_am WHERE amname = 'heap')
        OR EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid)
        OR EXISTS (SELECT FROM pg_class AS toast WHERE toast.oid = c.reltoastrelid AND toast.reloptions IS NOT NULL))
UNION ALL
SELECT 'this role may not create tables in its schema or does not own it'
  FROM pg_class AS c
 WHERE c.oid = %(oid)s
   AND NOT (pg_has_role(c.relowner, 'USAGE') AND has_schema_privilege(c.relnamespace, 'CREATE'))
UNION ALL
SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal
UNION ALL
SELECT 'foreign key ' || conname FROM pg_constraint WHERE conrelid = %(oid)s AND contype = 'f'
UNION ALL
SELECT 'policy ' || polname FROM pg_policy WHERE polrelid = %(oid)s
UNION ALL
SELECT 'publication' FROM pg_publication_rel WHERE prrelid = %(oid)s
UNION ALL
SELECT 'statistics ' || stxname FROM pg_statistic_ext WHERE stxrelid = %(oid)s
UNION ALL
SELECT 'security label' FROM pg_seclabel WHERE objoid = %(oid)s AND classoid = 'pg_class'::regclass
UNION ALL
SELECT 'settings of column ' || attname
  FROM pg_attribute
 WHERE (attrelid = %(oid)s OR attrelid IN (SELECT indexrelid FROM pg_index WHERE indrelid = %(oid)s))
   AND NOT attisdropped AND attnum > 0
   AND (attoptions IS NOT NULL OR coalesce(attstattarget, -1) <> -1)
UNION ALL
SELECT 'index ' || i.relname
  FROM pg_index AS x
  JOIN pg_class AS i ON i.oid = x.indexrelid
 WHERE x.indrelid = %(oid)s
   AND (NOT x.indisvalid OR x.indisclustered OR x.indisreplident OR i.reltablespace <> 0
        OR (i.reloptions IS NOT NULL AND EXISTS (SELECT FROM pg_constraint WHERE conindid = i.oid)))
UNION ALL
SELECT pg_describe_object(classid, objid, objsubid)  -- sequences of its columns, the extension it belongs to
  FROM pg_depend
 WHERE (refclassid, refobjid) = ('pg_class'::regclass, %(oid)s::oid) AND classid = 'pg_class'::regclass
   AND deptype IN ('a', 'i') AND objid IN (SELECT oid FROM pg_class WHERE relkind = 'S')
UNION ALL
SELECT 'extension' FROM pg_depend
 WHERE (classid, objid, deptype) = ('pg_class'::regclass, %(oid)s::oid, 'e')
UNION ALL
SELECT pg_describe_object(d.classid, d.objid, d.objsubid)  -- views, functions, columns of its row type
  FROM pg_depend AS d
  JOIN pg_class AS c ON c.oid = %(oid)s
  JOIN pg_type AS t ON t.oid = c.reltype
 WHERE d.deptype = 'n'
   AND ((d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid)
        OR (d.refclassid = 'pg_type'::regclass AND d.refobjid IN (t.oid, t.typarray)))
   AND NOT (d.classid = 'pg_constraint'::regclass  -- its own checks and generated columns go with it
            AND d.objid IN (SELECT oid FROM pg_constraint WHERE conrelid = c.oid))
   AND NOT (d.classid = 'pg_attrdef'::regclass AND d.objid IN (SELECT oid FROM pg_attrdef WHERE adrelid = c.oid))
"""

_FIND_INDEXES = """
SELECT i.relname, x.indisunique, obj_description(i.oid, 'pg_class'),
       pg_get_constraintdef(k.oid), obj_description(k.oid, 'pg_constraint'),
       CASE WHEN starts_with(whole.text, head.text) THEN substr(whole.text, length(head.text) + 1) END
  FROM pg_index AS x
  JOIN pg_class AS i ON i.oid = x.indexrelid
  JOIN pg_class AS c ON c.oid = x.indrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL pg_get_indexdef(i.oid) AS whole (text)
 CROSS JOIN LATERAL format('CREATE %%sINDEX %%I ON %%I.%%I ', CASE WHEN x.indisunique THEN 'UNIQUE ' ELSE '' END,
                           i.relname, n.nspname, c.relname) AS head (text)
  LEFT JOIN pg_constraint AS k ON k.conindid = i.oid AND k.conrelid = x.indrelid AND k.contype IN ('p', 'u', 'x')
 WHERE x.indrelid = %s
 ORDER BY i.oid
"""

_FIND_TABLE_PROPERTIES = """
SELECT c.relpersistence, pg_get_userbyid(c.relowner), obj_description(c.oid, 'pg_class'), c.reloptions
  FROM pg_class AS c
 WHERE c.oid = %s
"""

_FIND_GRANTS = """
SELECT NULL, g.grantee, pg_get_userbyid(g.grantee), g.privilege_type, g.is_grantable
  FROM pg_class AS c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS g
 WHERE c.oid = %(oid)s
UNION
SELECT a.attname, g.grantee, pg_get_userbyid(g.grantee), g.privilege_type, g.is_grantable
  FROM pg_attribute AS a, aclexplode(a.attacl) AS g
 WHERE a.attrelid = %(oid)s AND NOT a.attisdropped
"""


@dataclass(frozen=True)
class Index:
    name: str
    unique: bool
    comment: str | None
    constraint: str | None  # its definition, where the index is a constraint's
    constraint_comment: str | None
    definition: str | None  # from USING on; None if the text before it is not as expected


@dataclass(frozen=True)
class ReplacePlan:
    """How a table is replaced, and what of it a swap has to carry over."""

    reasons_to_rewrite: tuple[str, ...]
    indexes: tuple[Index, ...]
    unlogged: bool
    owner: str
    comment: str | None
    options: tuple[str, ...]


def plan_replacement(cur: cursor, target: Target) -> ReplacePlan:
    """Choose between swap and rewrite. Raises `NotReplaceable` where neither is safe."""
    cur.execute(_FIND_REASONS_TO_REFUSE, {"oid": target.oid})
    if refusals := [reason for (reason,) in cur]:
        raise NotReplaceable(f"{target} cannot be replaced as a whole: {'; '.join(refusals)}")
    cur.execute(_FIND_REASONS_TO_REWRITE, {"oid": target.oid})
    reasons = [reason for (reason,) in cur]
    cur.execute(_FIND_INDEXES, [target.oid])
    indexes = tuple(Index(*row) for row in cur)
    reasons += [index.name for index in indexes if index.definition is None]
    cur.execute(_FIND_TABLE_PROPERTIES, [target.oid])
    properties = cur.fetchone()
    if properties is None:
        raise TargetBusy(f"{target} was replaced by others; try again")
    persistence, owner, comment, options = properties
    return ReplacePlan(tuple(reasons), indexes, persistence == "u", owner, comment, tuple(options or ()))


def lock_replacement(cur: cursor, target: Target, ctx: SafePoint, timeout_sec: float) -> None:
    """Wait until no other load replaces this table: two of them would deadlock."""

    def try_lock() -> bool:
        cur.execute("SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", [f"dataloader replaces {target}"])
        return (cur.fetchone() or (False,))[0] is True

    _retry_until(try_lock, ctx, timeout_sec, f"another load was replacing {target} for all of {timeout_sec:.0f} s")


def lock_table(cur: cursor, target: Target, mode: str, ctx: SafePoint, timeout_sec: float) -> None:
    """Lock the table in short attempts with pauses, so that no session queues behind us for long."""
    cur.execute("SELECT current_setting('lock_timeout')")
    (usual,) = cur.fetchone() or ("0",)

    def try_lock() -> bool:
        cur.execute("SAVEPOINT dl_lock")
        cur.execute("SELECT set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])
        try:
            cur.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(target.name, sql.SQL(mode)))
        except psycopg2.errors.LockNotAvailable:
            cur.execute("ROLLBACK TO SAVEPOINT dl_lock")
            return False
        cur.execute("SELECT set_config('lock_timeout', %s, true)", [usual])
        cur.execute("RELEASE SAVEPOINT dl_lock")
        return True

    _retry_until(
        try_lock, ctx, timeout_sec, f"{target} was in use by others for all of {timeout_sec:.0f} s; nothing was changed"
    )


def _retry_until(attempt: Callable[[], bool], ctx: SafePoint, timeout_sec: float, timeout_message: str) -> None:
    deadline = time.monotonic() + timeout_sec
    pause = _MIN_RETRY_SEC
    while not attempt():
        if time.monotonic() >= deadline:
            raise TargetBusy(timeout_message)
        ctx.sleep(pause)
        pause = min(pause * 2, _MAX_RETRY_SEC)


class TableSwap:
    """A new table that is filled and then takes the place of the old one."""

    def __init__(self, cur: cursor, target: Target, plan: ReplacePlan) -> None:
        self._cur = cur
        self._target = target
        self._plan = plan
        self._table_name = f"dl_aside_{uuid4().hex[:16]}"
        self._new = sql.Identifier(target.schema, self._table_name)
        self._index_names = [f"{self._table_name}_{number}" for number in range(len(plan.indexes))]

    def fill(self, copy_input: CopyInput) -> Loaded:
        """Create the table like the old one and COPY into it. Its indexes are built faster afterwards."""
        self._execute(
            "CREATE {} TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS)",
            sql.SQL("UNLOGGED" if self._plan.unlogged else ""),
            self._new,
            self._target.name,
        )
        for option in self._plan.options:
            name, _, value = option.partition("=")
            self._execute("ALTER TABLE {} SET ({} = {})", self._new, sql.Identifier(name), sql.Literal(value))
        self._cur.execute("SELECT current_setting('transaction_isolation') = 'read committed'")
        (frozen,) = self._cur.fetchone() or (False,)  # FREEZE fails where the transaction holds a snapshot
        return copy_from(self._cur, self._new, self._target.columns, copy_input, freeze=frozen)

    def swap(self, ctx: SafePoint, timeout_sec: float) -> None:
        """Take the old table's place. DROP fails if something has come to depend on it, and nothing is lost."""
        self._build_indexes()
        lock_table(self._cur, self._target, "ACCESS EXCLUSIVE", ctx, timeout_sec)
        if plan_replacement(self._cur, self._target) != self._plan:
            raise TargetBusy(f"{self._target} was altered while its new rows were loaded; it keeps the old ones")
        self._copy_grants()
        self._execute("DROP TABLE {}", self._target.name)
        self._execute("ALTER TABLE {} RENAME TO {}", self._new, sql.Identifier(self._target.table))
        for old_name, index in zip(self._index_names, self._plan.indexes, strict=True):
            new_name = sql.Identifier(index.name)
            if index.constraint is not None:
                constraint = sql.Identifier(old_name)
                self._execute("ALTER TABLE {} RENAME CONSTRAINT {} TO {}", self._target.name, constraint, new_name)
            else:
                self._execute("ALTER INDEX {} RENAME TO {}", sql.Identifier(self._target.schema, old_name), new_name)

    def _build_indexes(self) -> None:
        """Build the indexes and do everything else that needs no lock on the old table."""
        for name, index in zip(self._index_names, self._plan.indexes, strict=True):
            own = sql.Identifier(name)
            if index.constraint is not None:
                self._execute("ALTER TABLE {} ADD CONSTRAINT {} {}", self._new, own, sql.SQL(index.constraint))
            else:
                kind = sql.SQL("UNIQUE INDEX" if index.unique else "INDEX")
                self._execute("CREATE {} {} ON {} {}", kind, own, self._new, sql.SQL(index.definition or ""))
            if index.comment is not None:
                qualified_name = sql.Identifier(self._target.schema, name)
                self._execute("COMMENT ON INDEX {} IS {}", qualified_name, sql.Literal(index.comment))
            if index.constraint_comment is not None:
                comment = sql.Literal(index.constraint_comment)
                self._execute("COMMENT ON CONSTRAINT {} ON {} IS {}", own, self._new, comment)
        self._execute("ANALYZE {}", self._new)
        if self._plan.comment is not None:
            self._execute("COMMENT ON TABLE {} IS {}", self._new, sql.Literal(self._plan.comment))
        self._execute("ALTER TABLE {} OWNER TO {}", self._new, sql.Identifier(self._plan.owner))

    def _copy_grants(self) -> None:
        """Copy the old table's privileges, in place of those that ALTER DEFAULT PRIVILEGES gave to the new one."""
        self._cur.execute("SELECT to_regclass(%s)::oid", [self._new.as_string(self._cur)])
        (new_oid,) = self._cur.fetchone() or (0,)
        for _, grantee, *_ in self._read_grants(new_oid):
            self._execute("REVOKE ALL ON {} FROM {}", self._new, grantee)
        for column, grantee, privilege, grantable in self._read_grants(self._target.oid):
            self._execute(
                "GRANT {} {} ON {} TO {} {}",
                sql.SQL(privilege),
                sql.SQL("({})").format(sql.Identifier(column)) if column else sql.SQL(""),
                self._new,
                grantee,
                sql.SQL("WITH GRANT OPTION" if grantable else ""),
            )

    def _read_grants(self, oid: int) -> list[tuple[str | None, sql.Composable, str, bool]]:
        """Return column, role, privilege and whether the role may grant it."""
        self._cur.execute(_FIND_GRANTS, {"oid": oid})
        return [
            (column, sql.SQL("PUBLIC") if role_oid == 0 else sql.Identifier(role), privilege, grantable)
            for column, role_oid, role, privilege, grantable in self._cur
        ]

    def _execute(self, statement: str, *parts: sql.Composable) -> None:
        self._cur.execute(sql.SQL(statement).format(*parts))
