"""The message after an act, on the page that is shown next, and the form that undoes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dataloader.app.acts.web import ActForms, Choice
from dataloader.app.features.undo.acts import ActHistory, PastAct, undo_act
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.queue.queues import QueueState
from dataloader.app.ui.base import PageRenderer, redirect_to


def page_values(site: Site) -> Callable[[], dict[str, Any]]:
    """The message after an act, on the page that is shown next."""
    history = ActHistory(site.executor, site.runner.undos)
    return lambda: {"last_act": history.shown_act, "describe_act": partial(describe_act, history)}


def create_undo_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("undo_page", site.options)
    forms = ActForms(pages=pages, runner=site.runner, page_url="/")
    forms.add("/undo", "undo_act", Choice(act=undo_act, respond=redirect_to))
    return pages.blueprint


def describe_act(history: ActHistory, act: PastAct) -> Iterator[tuple[str, str, str, list[tuple[str, Any, Any]]]]:
    """Of each entry: the subject, its name, whether it was created or deleted, and the values before and after."""
    for entry in act.entries:
        before, after = entry.before or {}, entry.after or {}
        word = "deleted" if entry.after is None else "" if entry.before is not None else "created"
        if entry.subject == "queue" and entry.before is None:  # its settings: without a row it is open
            before, word = {"state": QueueState.OPEN.value}, ""
        shown = [name for name in after if name in history.shown_fields(entry)]
        changes = [(name, before.get(name), after[name]) for name in shown if before.get(name) != after[name]]
        yield entry.subject.replace("_", " "), str(entry.subject_id), word, changes
