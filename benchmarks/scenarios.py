"""What the model answers for disturbances of a server with two cores, as a table and a chart."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.queue_model import Constants, Disturbance, Load, Times, find_saturation, simulate
from benchmarks.rounds import Cell, format_table

BEGIN_SEC = 60.0
_GROUP = 100  # jobs of a statement that enqueues
_BASE_SHARE = 0.3  # of saturation: a peak of five times is more than the server can do
_WINDOW_SEC = 2.0
_NORMAL_FACTOR = 2.0  # times are normal again when p99 is less than so many times that before
_CALM_WINDOWS = 3  # in a row
_COLORS = ("#2563eb", "#b45309", "#7c3aed", "#0f766e", "#be123c")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 860, 380, 70, 40


@dataclass(frozen=True)
class Scenario:
    question: str
    disturbance: Disturbance
    seconds: float

    @property
    def length_sec(self) -> float:
        return self.disturbance.end_sec - self.disturbance.begin_sec


def scenarios(constants: Constants, jobs_per_sec: float) -> list[Scenario]:
    def disturbed(length_sec: float, **changes: float) -> Disturbance:
        return Disturbance(begin_sec=BEGIN_SEC, end_sec=BEGIN_SEC + length_sec, **changes)  # type: ignore[arg-type]

    slow_flush_sec = max(0.2, 20 * constants.flush.total_sec(_GROUP))
    behind_jobs = int(jobs_per_sec * 3600)
    return [
        Scenario("five times the load for 10 min", disturbed(600, rate_factor=5), 1_500),
        Scenario(
            "the only synchronous standby is lost; 10 s until commits no longer wait for it",
            disturbed(10, flush_sec=10),
            120,
        ),
        Scenario("vacuum an hour behind, then catching up", disturbed(1, vacuum_jobs=behind_jobs), 180),
        Scenario(
            f"30 s of a checkpoint in which a flush takes {slow_flush_sec * 1e3:.0f} ms",
            disturbed(30, flush_sec=slow_flush_sec),
            180,
        ),
        Scenario("one cell of four is away for 60 s: that cell", disturbed(60, flush_sec=60), 300),
    ]


def print_answers(constants: Constants, chart: Path) -> None:
    """Print the table for docs/scaling.md and write its chart."""
    base = Load(jobs_per_sec=1, group=_GROUP, cores=2, workers=2, generators=16, seconds=20)
    saturation = find_saturation(base, lambda load: simulate(constants, load).done_per_sec)
    rate = round(saturation * _BASE_SHARE, -2)
    calm = simulate(constants, replace(base, jobs_per_sec=rate, seconds=60)).p99_ms
    rows: list[list[Cell]] = []
    lines: dict[str, list[tuple[float, float]]] = {}
    for scenario in scenarios(constants, rate):
        load = replace(base, jobs_per_sec=rate, seconds=scenario.seconds, warm_up_share=0)
        load = replace(load, disturbance=scenario.disturbance)
        times = simulate(constants, load).times
        windows = _windows(times, scenario.seconds)
        disturbed = times.due_in(BEGIN_SEC, scenario.disturbance.end_sec)
        rows.append(
            [
                scenario.question,
                _format_ms(disturbed.quantile_ms(99)),
                _format_ms(max(ended - due for due, ended, _ in times.entries) * 1e3),
                _format_normal(windows, scenario.disturbance.end_sec, calm),
            ]
        )
        lines[scenario.question] = windows
    rows.append(
        [
            "one cell of four is away for 60 s: the other three",
            _format_ms(calm),
            "–",
            "nothing changes: they share nothing",
        ]
    )
    print(
        f"\nSimulated with the costs of {constants.measured_at}: a server of {base.cores} cores, {base.workers} worker"
        f" processes on other machines, groups of {base.group},\n{rate:,.0f} jobs/s: {_BASE_SHARE:g} of the"
        f" {saturation:,.0f}/s at which it saturates. Undisturbed p99: {calm:.0f} ms.\n"
    )
    headings = ["disturbance", "p99 of the jobs due in it", "longest", "normal again after its end"]
    print(format_table(headings, rows, text_columns=(0, 1, 2, 3)))
    chart.write_text(draw_chart(lines), encoding="utf-8")
    print(f"\nThe chart is in {chart}.")


def _windows(times: Times, seconds: float) -> list[tuple[float, float]]:
    """The p99 in milliseconds of the jobs due in each window, by its begin."""
    by_window: dict[int, list[tuple[float, float, int]]] = {}
    for entry in times.entries:
        by_window.setdefault(int(entry[0] // _WINDOW_SEC), []).append(entry)
    return [
        (n * _WINDOW_SEC, Times(by_window[n]).quantile_ms(99)) for n in sorted(by_window) if n * _WINDOW_SEC < seconds
    ]


def _format_normal(windows: list[tuple[float, float]], end_sec: float, calm_ms: float) -> str:
    """After how long the p99 of several windows in a row is normal."""
    after = [(at, ms) for at, ms in windows if at >= end_sec]
    for n in range(len(after) - _CALM_WINDOWS):
        if all(ms < _NORMAL_FACTOR * calm_ms for _, ms in after[n : n + _CALM_WINDOWS]):
            return f"{after[n][0] - end_sec:.0f} s"
    return "not within the simulated time"


def _format_ms(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1_000 else f"{ms / 1_000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"


def draw_chart(lines: dict[str, list[tuple[float, float]]]) -> str:
    """Return an SVG: p99 by time since the disturbance began, the scale of times logarithmic."""
    last_sec = max(at for line in lines.values() for at, _ in line) - BEGIN_SEC
    top = math.ceil(math.log10(max(ms for line in lines.values() for _, ms in line)))

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 10) * (at - BEGIN_SEC + 20) / (last_sec + 20)

    def y(ms: float) -> float:
        return (_HEIGHT - _BOTTOM) - (_HEIGHT - _BOTTOM - 110) * math.log10(max(1.0, ms)) / top

    shapes = [f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>']
    for power in range(top + 1):
        label = _format_ms(10.0**power)
        shapes.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y(10**power):.0f}" y2="{y(10**power):.0f}" stroke="#d4d4d8"/>'
        )
        shapes.append(f'<text x="{_LEFT - 6}" y="{y(10**power) + 4:.0f}" text-anchor="end">{label}</text>')
    for minute in range(0, int(last_sec // 60) + 1, 2):
        shapes.append(
            f'<text x="{x(BEGIN_SEC + minute * 60):.0f}" y="{_HEIGHT - 16}" text-anchor="middle">{minute} min</text>'
        )
    for n, (name, line) in enumerate(lines.items()):
        color = _COLORS[n % len(_COLORS)]
        points = " ".join(f"{x(at):.1f},{y(ms):.1f}" for at, ms in line if at >= BEGIN_SEC - 20)
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        shapes.append(f'<text x="{_LEFT}" y="{18 + 18 * n}" fill="{color}">{escape(name)}</text>')
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        f' font-size="13" fill="#3f3f46" role="img" aria-label="Simulated p99 during disturbances">\n{body}\n</svg>\n'
    )
