"""The loads as tasks in processes of their own, which a child imports."""

from __future__ import annotations

from collections.abc import Mapping

from dataloader.pipelines.contract import register
from tests.target_proof.loads import HOME, SHAPES

NAMES: Mapping[str, str] = {shape: f"proof.{shape.replace(', ', '-').replace(' ', '-')}" for shape in SHAPES}

for shape, call in SHAPES.items():
    register(NAMES[shape], target=HOME, isolation="process")(call)
