"""Deletes the names of offloads that ended long ago, here and at their engines."""

from __future__ import annotations

from dataloader.app import log
from dataloader.app.features.offload.rows import Offloads
from dataloader.pipelines.executors import Engines

_log = log.get(__name__)
_KEEP_SEC = 7 * 86_400.0
_FORGET_SEC = 30 * 86_400.0  # then without the engine: it does not answer, or is not in the settings any more
_BATCH = 20
_NEXT_BATCH_SEC = 1.0


def prune_offloads(offloads: Offloads, engines: Engines) -> float | None:
    """Delete one batch; return the seconds until the next one, None: all are done. After an error of an engine its
    other names wait."""
    old = offloads.old(keep_sec=_KEEP_SEC, limit=_BATCH)
    deleted = {name for name, _ in offloads.old(keep_sec=_FORGET_SEC, limit=_BATCH)}
    failed: set[str] = set()
    for name, engine in old:
        if engine in failed:
            continue
        try:
            delete = getattr(engines.get(engine), "delete", None)
            if delete is not None:
                delete(name)
        except Exception as error:  # another package's executor may raise anything
            _log.warning("offload.not_deleted", offload=name, engine=engine, error=str(error))
            failed.add(engine)
        else:
            deleted.add(name)
    offloads.delete(deleted)
    return _NEXT_BATCH_SEC if deleted and len(old) == _BATCH else None
