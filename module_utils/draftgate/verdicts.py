"""How the switch job answers: exit codes and a result file, shared by the job and by who waits for it."""

from __future__ import annotations

from .layout import Home

EXIT_PASS = 0
EXIT_RESTORED = 10  # refused by the gate or never came up; what served before serves
EXIT_UNRESTORED = 11  # and what served before did not come back
EXIT_REFUSED = 12  # red evidence: not even tried
EXIT_FAILED = 13  # an error before or after a switch: what serves has not been touched
EXIT_INTERRUPTED = 70  # an open switch: no verdict, so the job's manager runs it again
# None is 1, Python's own for an exception that nobody caught: that is no verdict either.
VERDICT_EXIT_CODES = (EXIT_PASS, EXIT_FAILED, EXIT_RESTORED, EXIT_UNRESTORED, EXIT_REFUSED)


def result_path(home: Home) -> str:
    """What the last job ended with: written before it exits."""
    return home.path("state", "result.json")
