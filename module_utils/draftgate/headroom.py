"""Whether a second engine fits beside the one that serves, in figures that an operator can check.

vLLM says beforehand what it takes: a share of each GPU's memory, and on the CPU a KV cache of a given size.
What the running engine takes beside that is measured on it. Pure but for :func:`measured` and
:func:`wait_until_free`.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import host_memory
from .backend import hardening
from .backend.base import ENGINE_PREFIX, Runner, run_command
from .clocks import Clocks
from .errors import HostError
from .host_memory import Card, Holder, HostMemory
from .layout import Home
from .plan import IN_PLACE, SIDE_BY_SIDE

GIB = 1 << 30
RESERVE = GIB
"""What stays available for the rest of the host, and for what a start takes beyond a running engine."""
SHARED_MEMORY = 400 << 20
"""vLLM refuses to start with less in /dev/shm (measured: 0.32.0)."""
UTILIZATION = 0.92
"""vLLM's default share of a GPU, in 0.32.0; older ones have 0.90, and too much is safer to assume."""
FREE_TIME_LIMIT = 60.0
"""Seconds in which a driver has given back what an ended process held; it takes a few."""
_CPU_TIME_LIMIT = 10.0
_POLL_SECONDS = 0.5
_SPARE = 0.1
"""Of each GPU, in the advice: what two processes take beyond their shares (CUDA contexts, graphs)."""
_IN_PLACE = "Use draftgate_strategy=in_place"

Deployment = Mapping[str, Any]


@dataclass(frozen=True)
class Headroom:
    """:param sentence: the arithmetic; :param remedy: what would make them fit, a phrase to follow "or"."""

    fits: bool
    sentence: str
    remedy: str = ""


@dataclass(frozen=True)
class Choice:
    """How a switch is made, ``IN_PLACE`` or ``SIDE_BY_SIDE``, and why so."""

    strategy: str
    why: str


def choose(wished: str, front: bool, serving: bool, headroom: Callable[[], Headroom]) -> Choice:
    """The way of a switch. Pure.

    :param wished: ``auto``, ``in_place`` or ``side_by_side``; :param front: whether clients come through one.
    :param serving: whether the activated release answers; :param headroom: asked only where it decides.
    :raises HostError: ``side_by_side`` is wished and cannot be (DG156, DG157).
    """
    asked = wished == SIDE_BY_SIDE
    if wished == IN_PLACE:
        return Choice(IN_PLACE, "draftgate_strategy is in_place")
    if not front:
        if asked:
            raise _impossible("no front leads clients here", "set gateway_enabled: true", "DG157")
        return Choice(IN_PLACE, "no front leads clients to a second engine")
    if not serving:
        return Choice(IN_PLACE, "no release answers here: there is nothing to stay beside and nobody waits")
    room = headroom()
    if room.fits:
        return Choice(SIDE_BY_SIDE, room.sentence)
    if asked:
        raise _impossible(room.sentence, room.remedy, "DG156")
    return Choice(IN_PLACE, room.sentence + (f" (for side_by_side {room.remedy})" if room.remedy else ""))


def _impossible(observed: str, remedy: str, code: str) -> HostError:
    step = f"{_IN_PLACE}, or {remedy}." if remedy else f"{_IN_PLACE}."
    return HostError("switching beside the release that serves", observed, "", step, code)


def measured(home: Home, candidate: Deployment, active: Deployment) -> Headroom:
    """:func:`fits`, with what this host shows now."""
    return fits(candidate, active, read(home, candidate, active))


def read(home: Home, candidate: Deployment, active: Deployment, run: Runner = run_command) -> HostMemory:
    """What :func:`fits` judges. Asks nvidia-smi only for an engine that uses GPUs."""
    total, available = host_memory.memory()
    on_cpu = frozenset(deployed["id"] for deployed in (candidate, active) if _on_cpu(deployed))
    cards, trouble = ((), "") if candidate["id"] in on_cpu else host_memory.cards(run)
    own = candidate["place"]["backend"] == "systemd"  # its units have a /dev/shm of their own
    return HostMemory(
        total=total,
        available=available,
        held=host_memory.held(f"{ENGINE_PREFIX}{active['id']}", home.root),
        shared=None if own else host_memory.shared_free(),
        cards=cards,
        trouble=trouble,
        on_cpu=on_cpu,
        models=_models(home, candidate, active),
    )


def _on_cpu(deployed: Deployment) -> bool:
    place = deployed["place"]
    runtime = os.path.join(place["runtimes"], deployed["serve"]["runtime"]["lock"][:12])
    return hardening.device(place["gpus"], runtime) == hardening.CPU


def _models(home: Home, *deployed: Deployment) -> Dict[str, int]:
    digests = {digest for one in deployed for digest in _digests(one)}
    sizes = {digest: host_memory.bytes_below(home.model(digest)) for digest in digests}
    return {digest: size for digest, size in sizes.items() if size is not None}


def _digests(deployed: Deployment) -> List[str]:
    serve = deployed["serve"]
    return [model["digest"] for model in (serve["target"], serve["drafter"]) if model and model.get("digest")]


# What an engine takes


def _given_share(deployed: Deployment) -> Optional[float]:
    args = deployed["serve"]["args"]
    # the second is the same option by another name
    return _figure(args.get("gpu_memory_utilization", args.get("device_memory_utilization")))


def _share(deployed: Deployment) -> float:
    """Of each GPU's memory, or of the host's for a CPU engine whose KV cache has no size of its own."""
    given = _given_share(deployed)
    return UTILIZATION if given is None else given


def _assumption(*deployed: Deployment) -> str:
    assumed = None in [_given_share(one) for one in deployed]
    return f" ({UTILIZATION} is assumed, vLLM's default)" if assumed else ""


def _workers(deployed: Deployment) -> int:
    args = deployed["serve"]["args"]
    copies = args.get("data_parallel_size_local", args.get("data_parallel_size"))
    sizes = (args.get("tensor_parallel_size"), args.get("pipeline_parallel_size"), copies)
    count = 1
    for size in sizes:
        count *= int(_figure(size) or 1)
    return count


def _kv_cache(deployed: Deployment) -> Optional[int]:
    """Bytes of a CPU engine's KV cache; None: nothing says how much, and it takes a share of the memory."""
    each = _figure(deployed["serve"]["args"].get("kv_cache_memory_bytes"))
    space = _figure(deployed["serve"]["environment"].get("VLLM_CPU_KVCACHE_SPACE"))
    each = space * GIB if space is not None else each  # the environment wins, in vLLM's platforms/cpu.py
    return None if each is None else int(each) * _workers(deployed)


def _figure(value: Any) -> Optional[float]:
    """What is no number is the engine's to refuse."""
    try:
        figure = float(value)
    except (TypeError, ValueError):
        return None
    return None if isinstance(value, bool) or not math.isfinite(figure) else figure


def _weights(deployed: Deployment, host: HostMemory) -> Optional[int]:
    sizes = [host.models.get(digest) for digest in _digests(deployed)]
    return None if None in sizes else sum(size or 0 for size in sizes)


# The judgement


def fits(candidate: Deployment, active: Deployment, host: HostMemory) -> Headroom:
    """Whether ``candidate`` starts while ``active`` runs. Pure. What is not known does not fit.

    :param candidate: ``{id, release, serve, place, gate}``; so is ``active``.
    """
    on_cpu = candidate["id"] in host.on_cpu
    judged = [] if on_cpu else [_on_the_gpus(candidate, active, host)]
    judged += [_in_memory(candidate, active, host), _in_shared_memory(host)]
    short = [room for room in judged if not room.fits]
    return short[0] if short else judged[0]


def _in_shared_memory(host: HostMemory) -> Headroom:
    if host.shared is None or host.shared >= SHARED_MEMORY:
        return Headroom(True, "")
    observed = f"/dev/shm has {gib(host.shared)} free, and an engine wants {gib(SHARED_MEMORY)}"
    return Headroom(False, observed, "enlarge it (mount -o remount,size=2G /dev/shm)")


def _in_memory(candidate: Deployment, active: Deployment, host: HostMemory) -> Headroom:
    if candidate["id"] in host.on_cpu and _kv_cache(candidate) is None:
        return _by_share(candidate, host)
    if host.held is None:
        known = candidate["id"] not in host.on_cpu  # the GPUs decide, and few hosts have too little memory
        return Headroom(known, "what the running engine holds in memory cannot be read")
    more = _more(candidate, active, host)
    need = max(0, host.held + sum(more.values()))
    terms = [
        f"{gib(host.held)} as the running engine",
        *(_term(name, size) for name, size in more.items() if size),
    ]
    sentence = (
        f"side_by_side needs {gib(need)} of memory ({', '.join(terms)}) and leaves {gib(RESERVE)}; "
        f"{gib(host.available)} of {gib(host.total)} are available"
    )
    cache = _kv_cache(candidate)
    lower = cache and candidate["id"] in host.on_cpu
    remedy = f"lower VLLM_CPU_KVCACHE_SPACE (the KV cache has {gib(cache or 0)})" if lower else "free memory"
    return Headroom(need + RESERVE <= host.available, sentence, remedy)


def _more(candidate: Deployment, active: Deployment, host: HostMemory) -> Dict[str, int]:
    """What ``candidate`` takes of the host's memory beyond what ``active`` does, by what for."""
    weights, caches = [], []
    for deployed in (candidate, active):
        on_cpu = deployed["id"] in host.on_cpu
        weights.append(_weights(deployed, host) if on_cpu else 0)
        caches.append((_kv_cache(deployed) or 0) if on_cpu else 0)
    known = None not in weights  # before the models are there: taken for as large as those that serve
    models = (weights[0] or 0) - (weights[1] or 0) if known else 0
    return {"for its models": models, "for its KV cache": caches[0] - caches[1]}


def _term(name: str, size: int) -> str:
    return f"{'+' if size > 0 else '-'}{gib(abs(size))} {name}"


def _by_share(candidate: Deployment, host: HostMemory) -> Headroom:
    """A CPU engine whose KV cache has no size: vLLM wants its share of the memory free, and fills it."""
    share = _share(candidate)
    need = int(share * host.total)
    sentence = (
        f"side_by_side needs {share:.2f} of {gib(host.total)} of memory{_assumption(candidate)}, "
        f"because nothing says how large the KV cache is; {gib(host.available)} are available"
    )
    return Headroom(need <= host.available, sentence, "set VLLM_CPU_KVCACHE_SPACE in vllm_environment")


def _on_the_gpus(candidate: Deployment, active: Deployment, host: HostMemory) -> Headroom:
    cards, unknown = _known_cards(candidate, host.cards, host.trouble)
    if unknown:
        return Headroom(False, unknown)
    taken = [] if active["id"] in host.on_cpu else _cards(active, host.cards)
    rows = [_on_one(candidate, active if card in taken else None, card, len(cards), host) for card in cards]
    short = [room for room in rows if not room.fits]
    return short[0] if short else rows[0]


def _known_cards(deployed: Deployment, cards: Sequence[Card], trouble: str) -> Tuple[List[Card], str]:
    """The GPUs it uses, or in a phrase why what they have free is not known."""
    if trouble:
        return [], f"what the GPUs have free is not known: {trouble}"
    used = _cards(deployed, cards)
    for name, card in zip(deployed["place"]["gpus"] or [card.number for card in cards], used):
        if card is None:
            return [], f"nvidia-smi lists no GPU {name}"
        if card.divided:
            return [], f"GPU {name} is divided (MIG), and nvidia-smi does not tell what a slice has free"
        if not card.total or card.free is None:
            return [], f"nvidia-smi does not tell how much memory GPU {name} has free"
    return [card for card in used if card], ""


def _cards(deployed: Deployment, cards: Sequence[Card]) -> List[Optional[Card]]:
    """The GPUs it uses; None for one that is named and not listed. No name in ``place.gpus`` is all."""
    named = deployed["place"]["gpus"]
    matches = [next((card for card in cards if _is(card, name)), None) for name in named]
    return (matches or list(cards))[: _workers(deployed)]  # vLLM takes the first ones


def _is(card: Card, name: str) -> bool:
    """CUDA takes an index, and a UUID's beginning."""
    return card.number == name or (name.startswith("GPU-") and card.uuid.startswith(name))


def _on_one(
    candidate: Deployment, active: Optional[Deployment], card: Card, count: int, host: HostMemory
) -> Headroom:
    """:param active: None on a GPU that it does not use; :param count: how many GPUs the candidate uses."""
    total, free = card.total or 0, card.free or 0
    wanted, serving = _share(candidate), _share(active) if active else 0.0
    fit = wanted + serving <= 1.0 + 1e-9 and wanted * total <= free
    sentence = (
        f"side_by_side needs {_sum(wanted, serving)} of GPU {card.number}'s {gib(total)}"
        f"{_assumption(candidate, *([active] if active else []))}; {gib(free)} are free"
    )
    if fit:
        return Headroom(True, sentence)
    foreign = max(0.0, (card.used or 0) - serving * total)
    each = (1 - max(_SPARE, foreign / total + _SPARE / 2)) / (2 if active else 1)
    each = int(each * 20 + 1e-9) / 20
    if each < 0.1 or not all(_loads(one, each * total, count, host) for one in (candidate, active) if one):
        return Headroom(False, sentence)
    where = " in both" if active else ""
    return Headroom(False, sentence, f"lower gpu_memory_utilization to {each:.2f}{where}")


def _loads(deployed: Deployment, room: float, count: int, host: HostMemory) -> bool:
    """Whether its weights leave something of ``room`` on each GPU; those of unknown size are taken to."""
    return (_weights(deployed, host) or 0) / count < 0.9 * room


def _sum(wanted: float, serving: float) -> str:
    if not serving:
        return f"{wanted:.2f}"
    return f"2 x {wanted:.2f}" if wanted == serving else f"{serving:.2f} + {wanted:.2f}"


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


# After a stop, before a start


def wait_until_free(home: Home, deployed: Deployment, clocks: Clocks, run: Runner = run_command) -> float:
    """Wait until there is room again for what ``deployed`` takes at its start; seconds waited.

    A driver gives a GPU's memory back some time after the process that held it has ended, and vLLM refuses
    to start on a GPU that is not free. What is not known (no nvidia-smi, unified memory, MIG) is not waited
    for. Nor is a CPU engine for long: the host may have swap, and vLLM itself says what it cannot do without.

    :raises HostError: a GPU is still not free; the message names who holds it (DG158).
    """
    if _on_cpu(deployed):
        return _wait(clocks, _CPU_TIME_LIMIT, lambda: not _short_on_the_cpu(home, deployed))
    short: List[Card] = []

    def free() -> bool:
        short[:] = _short_of(deployed, run)
        return not short

    waited = _wait(clocks, FREE_TIME_LIMIT, free)
    if short:
        raise _still_held(deployed, short[0], waited, host_memory.holders(run))
    return waited


def _wait(clocks: Clocks, limit: float, done: Callable[[], bool]) -> float:
    """Seconds until ``done``, or a little more than ``limit``."""
    began = clocks.boottime()
    while not done() and clocks.boottime() - began < limit:
        clocks.sleep(_POLL_SECONDS)
    return round(clocks.boottime() - began, 2)


def _short_of(deployed: Deployment, run: Runner) -> List[Card]:
    """The GPUs that have less free than it wants."""
    cards, trouble = host_memory.cards(run)
    known, _unknown = _known_cards(deployed, cards, trouble)
    return [card for card in known if _share(deployed) * (card.total or 0) > (card.free or 0)]


def _short_on_the_cpu(home: Home, deployed: Deployment) -> bool:
    total, available = host_memory.memory()
    cache = _kv_cache(deployed)
    if cache is None:
        return int(_share(deployed) * total) > available
    models = _models(home, deployed)
    return sum(models.values()) + cache > available


def _still_held(deployed: Deployment, card: Card, waited: float, holders: List[Holder]) -> HostError:
    wanted, found = _share(deployed), [one for one in holders if one.uuid == card.uuid]
    here = [one for one in found if one.here]
    told = [_told(one) for one in here or found] or [
        "nvidia-smi names no process: it is outside this container, or has ended without its driver noticing"
    ]
    end = f"End it (kill {' '.join(str(one.pid) for one in here)})" if here else "End it there"
    return HostError(
        f"waiting for room for release {deployed['release']}",
        f"after {waited:.0f} s GPU {card.number} has {gib(card.free or 0)} free; {'; '.join(told)}",
        f"{wanted:.2f} of its {gib(card.total or 0)}{_assumption(deployed)}",
        f"{end}, or lower gpu_memory_utilization.",
        "DG158",
        {"gpu": card.uuid, "free_bytes": card.free, "holders": [one._asdict() for one in found]},
    )


def _told(holder: Holder) -> str:
    held = "memory" if holder.held is None else gib(holder.held)
    if holder.here:
        return f"pid {holder.pid} ({holder.name}) holds {held}"
    return f"a process outside this container (pid {holder.pid} there) holds {held}"
