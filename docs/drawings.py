"""Draws lease, fence, stop steps, slices and exactly once: `python -m docs.drawings` writes docs/images/*.svg.

One set of shapes keeps them alike. Their colours follow the reader's scheme; they have no script and no font.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH = 760
_STYLE = """
  .paper { fill: #ffffff } .ink { fill: #1d2733 } .soft { fill: #5b6673 }
  .run { fill: #d8e6f8; stroke: #0b5cad } .good { fill: #dcefe0; stroke: #1a7a36 }
  .bad { fill: #f9dede; stroke: #b3261e }
  .wait { fill: #fdf0cf; stroke: #94660a } .none { fill: #eef1f4; stroke: #8894a3 }
  .line { stroke: #8894a3; stroke-width: 1.5; fill: none } .goodline { stroke: #1a7a36; stroke-width: 2; fill: none }
  .badline { stroke: #b3261e; stroke-width: 2; stroke-dasharray: 5 4; fill: none }
  .badtext { fill: #b3261e } .goodtext { fill: #1a7a36 }
  text { font: 13px system-ui, sans-serif } .strong { font-weight: 600 } .small { font-size: 11.5px }
  .mono { font-family: ui-monospace, monospace; font-size: 12px }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0f141a } .ink { fill: #e4e9ef } .soft { fill: #9aa6b3 }
    .run { fill: #17304d; stroke: #7db8f5 } .good { fill: #15331e; stroke: #5cc47a }
    .bad { fill: #451b1b; stroke: #f28b82 }
    .wait { fill: #3b2f10; stroke: #e3b341 } .none { fill: #1c232b; stroke: #66727f }
    .line { stroke: #66727f } .goodline { stroke: #5cc47a } .badline { stroke: #f28b82 }
    .badtext { fill: #f28b82 } .goodtext { fill: #5cc47a }
  }
"""


class Drawing:
    """Shapes on a sheet of a fixed width. `title` is what a screen reader says."""

    def __init__(self, title: str, height: int) -> None:
        self._title, self._height = title, height
        self._shapes: list[str] = []

    def text(self, x: float, y: float, text: str, style: str = "ink", anchor: str = "start") -> None:
        self._shapes.append(f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>')

    def note(self, y: float, text: str) -> None:
        self.text(20, y, text, "soft small")

    def box(self, x: float, y: float, width: float, height: float, style: str, *labels: str) -> None:
        """A rectangle with lines of text in its middle."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self._shapes.append(f'<rect {place} rx="4" class="{style}" stroke-width="1.5"/>')
        top = y + height / 2 - 8 * (len(labels) - 1) + 4.5
        for n, label in enumerate(labels):
            self.text(x + width / 2, top + 16 * n, label, "ink small" if n else "ink", "middle")

    def arrow(self, x1: float, y1: float, x2: float, y2: float, style: str = "line") -> None:
        self._shapes.append(
            f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" class="{style}" marker-end="url(#{_MARKERS[style]})"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str = "line") -> None:
        self._shapes.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" class="{style}"/>')

    def svg(self) -> str:
        markers = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0L8 4L0 8Z" class="{fill}"/></marker>'
            for name, fill in (("tip", "soft"), ("goodtip", "goodtext"), ("badtip", "badtext"))
        )
        size = f'viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">'
        parts = [
            head,
            f'<title id="title">{escape(self._title)}</title>',
            f"<style>{_STYLE}</style>",
            f"<defs>{markers}</defs>",
        ]
        return "\n".join(
            [
                *parts,
                f'<rect width="{WIDTH}" height="{self._height}" class="paper" rx="6"/>',
                *self._shapes,
                "</svg>",
                "",
            ]
        )


_MARKERS = {"line": "tip", "goodline": "goodtip", "badline": "badtip"}


def lease() -> Drawing:
    """Times are those of the default settings: a lease of 60 s, a heartbeat each 10 s."""
    d = Drawing(
        "A worker renews its lease with each heartbeat. After its death it expires, and the job is queued again.",
        250,
    )
    d.text(20, 52, "worker A", "ink strong")
    d.box(110, 34, 300, 28, "run", "attempt 1 runs")
    d.text(418, 53, "✕ the machine is gone", "badtext")
    for n in range(6):
        x = 120 + n * 56
        d.arrow(x, 62, x, 92)
    d.text(20, 108, "the lease", "ink strong")
    d.box(110, 94, 300, 24, "good", "renewed with each heartbeat")
    d.box(410, 94, 120, 24, "wait", "runs out")
    d.line(530, 88, 530, 190, "badline")
    d.text(536, 108, "expired", "badtext small")
    d.text(20, 163, "worker B", "ink strong")
    d.text(520, 163, "its reaper queues the job again", "soft", "end")
    d.box(560, 145, 180, 28, "run", "attempt 2 runs")
    d.arrow(20, 205, 740, 205)
    d.text(740, 224, "time", "soft small", "end")
    d.note(238, "Where the death is proved, by the kernel of the same host, attempt 2 starts at once.")
    return d


def fence() -> Drawing:
    d = Drawing(
        "Each attempt has a run id. A statement of one that has lost its job names an old id, and changes nothing.",
        270,
    )
    d.text(20, 45, "worker A", "ink strong")
    d.box(110, 27, 190, 28, "run", "attempt 1, run 7f3a")
    d.box(300, 27, 170, 28, "none", "frozen")
    d.box(470, 27, 100, 28, "bad", "continues")
    d.arrow(530, 55, 530, 108, "badline")
    d.text(520, 86, "UPDATE … WHERE run_id = 7f3a: no row", "badtext small", "end")
    d.box(110, 110, 630, 44, "none")
    d.box(120, 118, 190, 28, "run", "run_id 7f3a")
    d.box(400, 118, 120, 28, "good", "run_id c915")
    d.box(660, 118, 74, 28, "good", "done")
    d.text(20, 137, "its row", "ink strong")
    d.text(20, 207, "worker B", "ink strong")
    d.box(400, 189, 300, 28, "run", "attempt 2, run c915")
    d.arrow(430, 189, 430, 148, "goodline")
    d.text(394, 178, "claims: a new run id", "goodtext small", "end")
    d.arrow(690, 189, 690, 148, "goodline")
    d.text(684, 178, "… WHERE run_id = c915: one row", "goodtext small", "end")
    d.note(250, "The same holds for heartbeats, progress, checkpoints, and for the rows of a target.")
    return d


STEPS = (
    ("request", "the next call of ctx raises Stop", "good"),
    ("cancel of its statements", "what it runs in the database is canceled", "wait"),
    ("SIGTERM · interrupt", "a process gets the signal, a thread with interrupt=True an exception", "wait"),
    ("SIGKILL · end of its sessions", "of the process group; of a thread the sessions from ctx", "bad"),
    ("stop pending", "a thread only: it is marked, and runs to its end", "none"),
)


def stop_steps() -> Drawing:
    d = Drawing(
        "A stop begins with a request. If the job still runs after DL_STOP_STEP_SEC, the next, harder step follows.",
        320,
    )
    d.text(20, 30, "cancel, time limit, shutdown or a lost lease", "ink strong")
    for n, (step, what, style) in enumerate(STEPS):
        x, y = 20 + 46 * n, 44 + 50 * n
        d.box(x, y, 220, 34, style, step)
        d.text(x + 230, y + 22, what, "soft small")
        if n + 1 < len(STEPS):
            d.arrow(x + 23, y + 34, x + 23, y + 67)
            d.arrow(x + 34, y + 67, x + 45, y + 67)
    d.note(
        308,
        "Each step has DL_STOP_STEP_SEC, 5 s by default, and the job ends at the first that works.",
    )
    return d


def slices() -> Drawing:
    d = Drawing(
        "A task that loads by day has slices. A backfill makes one job for each slice that is missing or has failed.",
        250,
    )
    d.text(20, 34, "partitions=Daily(…): one slice a day, each with the state of its last job", "ink strong")
    states = ["good"] * 9 + ["bad"] + ["good"] * 4 + ["none"] * 3 + ["run"] * 2 + ["wait"] * 9
    for n, style in enumerate(states):
        d.box(20 + n * 26, 50, 22, 34, style)
    for n in range(0, len(states), 7):
        d.text(20 + n * 26, 102, f"Jan {n + 1}", "soft small")
    legend = (
        ("good", "succeeded"),
        ("bad", "failed"),
        ("none", "missing"),
        ("run", "running"),
        ("wait", "queued by the backfill"),
    )
    x = 20.0
    for style, label in legend:
        d.box(x, 116, 14, 14, style)
        d.text(x + 20, 128, label, "ink small")
        x += 46 + 7.2 * len(label)
    d.text(20, 172, "backfill --from 2026-01 --to 2026-01", "mono ink")
    d.text(330, 172, "a job for each slice that is missing or has failed", "soft")
    d.text(20, 196, "… --mode all", "mono ink")
    d.text(330, 196, "for each slice, also those that have succeeded", "soft")
    d.text(20, 220, "… --partition-key 2026-01-10", "mono ink")
    d.text(330, 220, "for this one", "soft")
    return d


def exactly_once() -> Drawing:
    d = Drawing(
        "Rows and position of a part commit together. After a death the next attempt begins behind the position.",
        290,
    )
    d.text(20, 36, "attempt 1", "ink strong")
    for n in range(3):
        d.box(110 + n * 110, 20, 100, 26, ("run", "run", "bad")[n], f"day {n + 1}")
    d.text(448, 38, "✕ killed before its COMMIT", "badtext")
    d.text(20, 112, "one", "ink strong")
    d.text(20, 128, "transaction", "ink strong")
    for n in range(2):
        d.arrow(160 + n * 110, 46, 160 + n * 110, 86, "goodline")
        d.box(110 + n * 110, 88, 100, 48, "good", f"rows of day {n + 1}", f"position: {n + 1}")
    d.arrow(380, 46, 380, 86, "badline")
    d.box(330, 88, 100, 48, "bad", "rolled back")
    for n in (2, 3):
        d.box(460 + (n - 2) * 110, 88, 100, 48, "good", f"rows of day {n + 1}", f"position: {n + 1}")
        d.arrow(510 + (n - 2) * 110, 190, 510 + (n - 2) * 110, 138, "goodline")
        d.box(460 + (n - 2) * 110, 190, 100, 26, "run", f"day {n + 1}")
    d.text(20, 207, "attempt 2", "ink strong")
    d.text(448, 207, "reads the position: 2, and begins with day 3", "soft", "end")
    d.note(252, "The target has four days, each once. The transaction checks the fence: an attempt that has")
    d.note(270, "lost its job commits nothing there once the next one has begun.")
    return d


DRAWINGS: Mapping[str, Callable[[], Drawing]] = {
    "lease.svg": lease,
    "fence.svg": fence,
    "stop-steps.svg": stop_steps,
    "slices.svg": slices,
    "exactly-once.svg": exactly_once,
}


def write_drawings() -> None:
    for name, draw in DRAWINGS.items():
        (IMAGES / name).write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    write_drawings()
