from __future__ import annotations

from app.queue.bulk import Action, Bulk, BulkState
from app.queue.lists import Filter
from app.queue.rollups import Rollups
from tests.support import eventually
from tests.support.plant import Plant


def clerks(plant: Plant) -> int:
    return int(
        plant.desk.one(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'dataloader-clerk:%%'"
        )
    )


def test_one_process_of_all_does_bulk_operations_and_folds_the_journal(plant):
    for _ in range(2):
        plant.listening({"q": 1})
    bulk, rollups = Bulk(plant.desk.session), Rollups(plant.desk.session)
    for n in range(3):
        plant.desk.enqueue(f"k{n}", queue="nobody's")

    operation = bulk.start(Action.CANCEL, Filter(), expected=3)

    eventually(lambda: bulk.get(operation.id).state is BulkState.DONE, message="it is done")
    eventually(lambda: rollups.by_queue().get("nobody's"), message="the journal is folded")
    assert clerks(plant) == 1


def test_another_process_takes_over_when_the_clerk_is_gone(plant):
    first = plant.listening({"q": 1})
    eventually(lambda: clerks(plant) == 1, message="one leads")
    plant.listening({"q": 1})

    first.stop(grace=1)

    bulk = Bulk(plant.desk.session)
    plant.desk.enqueue("k", queue="nobody's")
    operation = bulk.start(Action.CANCEL, Filter(queue="nobody's"), expected=1)
    eventually(lambda: bulk.get(operation.id).state is BulkState.DONE, message="the other one does it")


def test_a_line_of_the_journal_that_cannot_be_folded_stops_the_numbers_and_nothing_else(plant, caplog):
    plant.desk.enqueue("k", queue="nobody's")
    plant.desk.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE data_exception USING MESSAGE = 'no such number'; END $$;"
        " CREATE TRIGGER refusing BEFORE INSERT ON dl_rollups FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    plant.listening({"q": 1})
    eventually(lambda: "rollups.failed" in caplog.text, message="it is told")

    bulk = Bulk(plant.desk.session)
    operation = bulk.start(Action.CANCEL, Filter(queue="nobody's"), expected=1)

    eventually(lambda: bulk.get(operation.id).state is BulkState.DONE, message="the clerk goes on")
    assert plant.died == []
    plant.desk.sql("DROP TRIGGER refusing ON dl_rollups; DROP FUNCTION refuse()")
