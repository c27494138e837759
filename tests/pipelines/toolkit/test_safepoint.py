import time

from dataloader.pipelines.toolkit.safepoint import NoSafePoints


def test_no_safe_points_never_stops_the_work():
    began = time.monotonic()
    NoSafePoints().check()
    NoSafePoints().sleep(0.02)

    assert time.monotonic() - began >= 0.02
