"""The options of a switch: numbers that are no number of seconds anybody waits."""

from __future__ import annotations

import pytest
from draftgate.errors import InputError
from draftgate.options import checked

YEARS = 10 * 365 * 86400


@pytest.mark.parametrize("said", ["999999999999999 d", "9" * 400, "9" * 5000, "3651 d", YEARS + 1, "0 d"])
@pytest.mark.parametrize(
    ("option", "variable"),
    [("time_limit", "draftgate_switch_time_limit"), ("evidence_max_age", "acceptance_evidence_max_age")],
)
def test_a_time_beyond_ten_years_is_refused_in_one_sentence(said: object, option: str, variable: str) -> None:
    with pytest.raises(InputError, match=f"{variable}.*up to 3650 d") as caught:
        checked({option: said})
    assert len(str(caught.value)) < 220
    assert checked({option: "3650 d"})[option] == YEARS
