"""Simulates loads of one PostgreSQL from measured costs, and checks the simulation against real loads.

Takes about 10 seconds; with --measure 3 minutes, with --check 4 minutes.

`--measure` finds the rate at which a worker process on this machine saturates, and the costs of a job at 0.7 of it. It
writes both to the file of constants; measure on a machine without other load. Without options the table shows what the
model makes of them: for 11,574 jobs a second, a billion a day, and twice that. Saturated is the highest rate of
arrivals at random times that is kept up with: the queue does not grow through the run.

`--check` runs 0.5 and 0.9 of that rate, three times each, and simulates the same arrivals on the same cores: the median
of the three p99 from the time at which jobs were due to their end must be within 30 % of the model's. If both are, it
prints what the model answers for a peak, a lost standby and other disturbances, and writes a chart of them. Otherwise
it ends with 1, and **no figure of the model may be shown**: the table has how much the real loads differ from one
another and how much of the machine other programs used. Check soon after measuring: what else a host does changes what
a job costs.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks.place import benchmark_server, describe_environment
from benchmarks.queue_model import Constants, Load, Result, Times, find_saturation, simulate
from benchmarks.real_load import SERVER_SETTINGS, RealLoad, prepare_wal, run_load
from benchmarks.rounds import Cell, format_table, make_parser
from benchmarks.scenarios import print_answers
from benchmarks.statement_costs import SIZES, measure

CONSTANTS_FILE = Path("benchmarks/constants.json")
CHART_FILE = Path("docs/simulation.svg")
BILLION_A_DAY = 1e9 / 86_400
GROUP = SIZES[0]  # jobs of a statement that enqueues, in the loads that are compared
SHARES = (0.5, 0.9)  # of saturation, where the model is checked
MAX_DIFFERENCE = 0.3
_QUIET_SHARE = 0.05  # of the machine's cores: what other programs may use before a failure may be theirs
_COST_SEC = 12.0  # of each load that saturation and costs are measured with


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--constants", type=Path, default=CONSTANTS_FILE, help="the file of the measured costs")
    parser.add_argument("--chart", type=Path, default=CHART_FILE, help="the chart that a passed check writes")
    parser.add_argument("--measure", action="store_true", help="measure the costs of this machine into that file")
    parser.add_argument("--check", action="store_true", help="compare two real loads with the model")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load, real or simulated")
    parser.add_argument("--runs", type=int, default=3, help="of each real load")
    options = parser.parse_args(argv)
    if not options.measure and not options.constants.exists():
        parser.error(f"there is no file {options.constants}; --measure writes it")
    if not (options.measure or options.check):
        print_table(Constants.load(options.constants), options.seconds)
        return
    with benchmark_server(SERVER_SETTINGS) as (server_dsn, server):
        if server is None:
            parser.error("the CPU time of a server that DL_BENCH_DSN names cannot be measured")
        print(describe_environment(server_dsn), flush=True)
        prepare_wal(server_dsn)
        load = Load(jobs_per_sec=1, group=GROUP, cores=psutil.cpu_count(), seconds=options.seconds, shares_cores=True)
        if options.measure:
            measure(server_dsn, replace(load, seconds=_COST_SEC)).save(options.constants)
        constants = Constants.load(options.constants)
        print_constants(constants, load)
        has_passed = not options.check or check(server_dsn, constants, load, options.runs)
    if options.check and has_passed:
        print_answers(constants, options.chart)
    sys.exit(0 if has_passed else 1)


def print_table(constants: Constants, seconds: float) -> None:
    print(f"Costs of {constants.measured_at}, {constants.cores} CPUs; workers on other machines\n")
    rows: list[list[Cell]] = []
    for rate in (BILLION_A_DAY, 2 * BILLION_A_DAY):
        for group in (20, 100, 400):
            cells: list[Cell] = [f"{rate:,.0f}", group]
            for cores in (2, 4, 8):
                load = Load(jobs_per_sec=rate, group=group, cores=cores, workers=8, generators=16, seconds=seconds)
                result = simulate(constants, load)
                saturated = f"saturated at {result.done_per_sec:,.0f}/s"
                cells.append(saturated if result.is_saturated else f"p99 {result.p99_ms:.0f} ms")
            rows.append(cells)
    print(format_table(["jobs/s", "in groups of", "2 cores", "4 cores", "8 cores"], rows, text_columns=(2, 3, 4)))


def print_constants(constants: Constants, load: Load) -> None:
    of_model = find_saturation(load, lambda one: simulate(constants, one).done_per_sec)
    print(
        f"{constants}\n\nSaturated: {constants.saturation:,.0f} jobs/s, {of_model:,.0f} in the model. Other programs"
        f" used {constants.others:.0%} of the machine while costs were measured.\n",
        flush=True,
    )


def check(server_dsn: str, constants: Constants, load: Load, runs: int) -> bool:
    """Compare real loads at shares of saturation with the model's; print both and return whether they agree."""
    rows: list[list[Cell]] = []
    notes: list[str] = []
    has_passed, others = True, 0.0
    for share in SHARES:
        loads = [replace(load, jobs_per_sec=constants.saturation * share, seed=n) for n in range(1, runs + 1)]
        real = [run_load(server_dsn, one) for one in loads]
        model = [simulate(constants, one) for one in loads]
        for name, figure in _FIGURES.items():
            real_ms = [figure(one.times) for one in real]
            middle_ms = statistics.median(real_ms)
            model_ms = statistics.median(figure(one.times) for one in model)
            difference = model_ms / middle_ms - 1
            if name == "p99":
                has_passed = has_passed and abs(difference) <= MAX_DIFFERENCE
            each = " / ".join(f"{ms:.0f}" for ms in real_ms)
            rows.append([f"{share:g} of saturation", name, each, middle_ms, model_ms, f"{difference:+.0%}"])
        others = max(others, *(one.others for one in real))
        notes.append(_describe_runs(share, loads, real, model))
    headings = ["load", "ms", "real, each run", "median", "model", "difference"]
    print(format_table(headings, rows, text_columns=(0, 1, 2, 5)))
    print("\n" + "\n".join(notes))
    print(f"\n{'passed' if has_passed else 'FAILED'}: the limit is {MAX_DIFFERENCE:.0%} of p99")
    if not has_passed and max(others, constants.others) > _QUIET_SHARE:
        print("Other programs used the machine: a process that wakes up waits for a core. Repeat it without them.")
    return has_passed


_FIGURES: dict[str, Callable[[Times], float]] = {
    "mean": lambda times: times.mean_ms,
    "p50": lambda times: times.quantile_ms(50),
    "p95": lambda times: times.quantile_ms(95),
    "p99": lambda times: times.quantile_ms(99),
}


def _describe_runs(share: float, loads: Sequence[Load], real: Sequence[RealLoad], model: Sequence[Result]) -> str:
    p99_ms = [one.times.quantile_ms(99) for one in real]
    others = ", ".join(f"{one.others:.0%}" for one in real)
    return (
        f"{share:g}: {loads[0].jobs_per_sec:,.0f} jobs/s. The largest real p99 is {max(p99_ms) / min(p99_ms) - 1:.0%}"
        f" above the smallest.\n     {_describe_groups(real[0], model[0])} Generator late:"
        f" {max(one.late_ms for one in real):.1f} ms at p99. Other programs used {others} of the machine."
    )


def _describe_groups(real: RealLoad, model: Result) -> str:
    sizes = (1 / max(1e-9, share) for share in (real.claims, model.claims, real.settlements, model.settlements))
    claim, claim_of_model, settlement, settlement_of_model = sizes
    return (
        f"Jobs of a claim: {claim:.0f}, model {claim_of_model:.0f}; of a settlement {settlement:.0f}, model"
        f" {settlement_of_model:.0f}. A flush: {real.flush_us / max(1e-9, real.flushes) / 1e3:.2f} ms."
    )


if __name__ == "__main__":
    main()
