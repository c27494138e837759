"""The job that every peer runs, as a pipeline of ours."""

from __future__ import annotations

from benchmarks.peers.drivers.protocol import note
from dataloader.pipelines.contract import register


@register("bench.note")
def bench_note() -> None:
    note()
