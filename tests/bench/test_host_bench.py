"""What a switch costs those who wait for answers, on a systemd host behind its front."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.conftest import remote_host
from tests.e2e.remote import Remote, switched_under_load
from tests.results import Figure

__all__ = ["remote_host"]  # a fixture

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]


def test_two_ways_to_switch(remote_host: Callable[..., Remote], figure: Figure) -> None:
    """Four clients ask all the time, two of them for streams; both ways in one run on one host."""
    at = remote_host("bench")
    first = at.deploy({"num_speculative_tokens": 7})
    assert first.code == 0, first
    done, tally = switched_under_load(at, {"num_speculative_tokens": 6, "draftgate_strategy": "side_by_side"})
    assert done.code == 0, done
    figure("side_by_side_failed_requests", len(tally.answers) - tally.count("ok"))
    done, tally = switched_under_load(at, {"num_speculative_tokens": 7, "draftgate_strategy": "in_place"})
    assert done.code == 0 and tally.failures == [], (done, tally.failures)
    stages = at.status()["last_switch"]["stages"]
    figure("in_place_downtime_ratio", tally.downtime() / (stages["started"] + stages["gated"]))
