import time

from pipelines.toolkit.safepoint import Unattended


def test_with_nobody_to_ask_the_work_goes_on_and_waits_as_long_as_it_wants():
    began = time.monotonic()
    Unattended().check()
    Unattended().sleep(0.02)

    assert time.monotonic() - began >= 0.02
