from pipelines.opu.table import COLUMNS, TABLE, Column, FieldKind, create_statements


def test_the_table_has_23_columns_and_a_key_of_8():
    assert len({column.name for column in COLUMNS}) == len(COLUMNS) == 23
    assert sum(column.key for column in COLUMNS) == 8


def test_the_statements_follow_from_the_columns(rows):
    rows(create_statements())

    columns = rows(
        "SELECT attname, format_type(atttypid, atttypmod) AS kind, attnotnull FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        TABLE,
    )
    kinds = {FieldKind.TIMESTAMP: "timestamp with time zone"}
    assert columns == [
        {"attname": column.name, "kind": kinds.get(column.kind, column.kind.value), "attnotnull": column.key}
        for column in COLUMNS
    ]


def test_a_field_may_have_another_name_than_its_column():
    assert Column("unit", FieldKind.TEXT, field="Ед. изм.").source == "Ед. изм."
    assert Column("unit", FieldKind.TEXT).source == "unit"
