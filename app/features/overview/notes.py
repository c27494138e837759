"""What features show on the overview that is no problem: their notes, from one cached read of the primary."""

from __future__ import annotations

from dataloader.app.acts.feature import load_all
from dataloader.app.acts.notes import Note
from dataloader.app.http.caches import RefreshingValue
from dataloader.app.http.site import Site

_TIMEOUT_SEC, _RETRY_SEC = 0.5, 10.0
_REFRESH_AFTER_SEC, _MAX_AGE_SEC = 10.0, 60.0


class NoteReader:
    """Reads in a thread of its own, and so on the primary: a standby has sessions of its own, and a primary that does
    not answer delays the page by the timeout at most."""

    def __init__(self, site: Site) -> None:
        readers = tuple(load_all(site.features, "notes"))

        def read() -> list[Note]:
            return [note for read_notes in readers for note in read_notes(site.executor)]

        self._notes = RefreshingValue(read, name="read-notes", timeout_sec=_TIMEOUT_SEC, retry_sec=_RETRY_SEC)

    def get(self) -> list[Note]:
        """Return the notes; none when they cannot be read now."""
        return self._notes.get_recent(refresh_after_sec=_REFRESH_AFTER_SEC, max_age_sec=_MAX_AGE_SEC) or []
