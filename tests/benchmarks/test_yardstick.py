"""The comparison of the statements of a job with those of the last release."""

from __future__ import annotations

import re

import pytest

from benchmarks import yardstick


@pytest.mark.superuser("benchmarks make databases of their own")
@pytest.mark.parametrize(("bound", "code"), [("99", 0), ("0.01", 1)])
def test_a_statement_above_the_bound_fails_the_command(bound, code, monkeypatch, server_dsn, capsys):
    monkeypatch.setenv("DL_BENCH_DSN", server_dsn)

    with pytest.raises(SystemExit) as ended:
        yardstick.main(["--seconds", "0", "--max", bound])

    assert ended.value.code == code
    output = capsys.readouterr().out
    assert len(re.findall(r"^\| [A-Za-z_]+.* [\d.]+ × \|$", output, re.MULTILINE)) == 9
    assert (
        len(re.findall(r"^(.+): [\d.]+ × the release's; at most 0\.01 is allowed$", output, re.MULTILINE)) == 9 * code
    )
