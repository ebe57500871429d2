"""What runs on the controller around a module: following a job, and keeping the evidence it brings.

No Ansible here: the action plugins hand in how to call the module and how to show a line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import Any, Callable, Dict, List, Mapping, Optional, Set

from . import page, progress, repeat, report
from .errors import InputError
from .files import read_json, write_changed, write_json

POLL_SECONDS = 4.0
"""One call waits this long for news: a call costs about 0.3 CPU-seconds on a host that has better to do."""

SHOW_SECONDS = 15.0
"""A line this often while only the time passes."""

SHOWN_STEP_SECONDS = 1.0
"""A step this long has a line of its own, even where no call happened to see it."""

_SAID_ELSEWHERE = frozenset(
    ("journal", "status", "evidence", "current_evidence", "differs", "error", "job", "action", "findings")
)

_STAGES = {"previous_stopped": "stop", "started": "start", "gated": "gate", "restored": "restore"}
"""A journal's states in their order → what a person calls the step."""

Execute = Callable[[Dict[str, Any]], Dict[str, Any]]
Show = Callable[[str], None]


def follow(execute: Execute, show: Show, host: str, job: str) -> Dict[str, Any]:
    """Call the module until its job has ended; one line whenever the picture changed, or time has passed.

    What only the first call knows (``differs``, ``action``) is kept in the result. A step that began and
    ended between two calls is shown once it is known.
    """
    first: Dict[str, Any] = {}
    steps: Set[str] = set()
    arguments: Dict[str, Any] = {"wait_seconds": POLL_SECONDS}
    shown: Mapping[str, Any] = {}
    while True:
        result = execute(arguments)
        first = first or {
            key: result[key] for key in ("differs", "diff", "action", "release") if key in result
        }
        job_state: Mapping[str, Any] = result.get("job") or {}
        if not job_state.get("running"):
            for step, seconds in (_stages(result) or {}).items():
                if step not in steps and seconds >= SHOWN_STEP_SECONDS:
                    show(f"{host} | {job} | {step} | took {progress.span(seconds)}")
            return {**first, **result}
        if result.get("announce"):
            show(f"{host} | {job} | {result['announce']}")
        state = job_state["progress"]
        if _is_news(state, shown):
            show(progress.line(host, job, state))
            shown = state
            steps.add(str(state.get("stage")))
        arguments = {
            "wait_seconds": POLL_SECONDS,
            "seen": str(state.get("stage", "")),
            "attempt": result["attempt"],
        }


def _is_news(state: Mapping[str, Any], shown: Mapping[str, Any]) -> bool:
    picture = ("stage", "done", "detail")
    if not state or not shown or any(state[key] != shown[key] for key in picture):
        return bool(state)
    return bool(state["updated"] - shown["updated"] >= SHOW_SECONDS)


def write_reports(
    directory: str, host: str, result: Mapping[str, Any], attempted: bool, command: str = ""
) -> List[str]:
    """What serves (``current``) and what was tried (``last_attempt``), as JSON and as a page each.

    :param directory: on the controller; ``~`` is its user's home.
    :param command: what to type to do it again.
    :return: the paths written.
    """
    tried = result.get("evidence")
    current = result.get("current_evidence") or (None if attempted else tried)
    written: List[str] = []
    for name, evidence in (("current", current), ("last_attempt", tried if attempted else None)):
        if evidence:
            own = attempted and evidence == tried
            path = os.path.join(os.path.expanduser(directory), host, f"{name}.json")
            pages = [path[: -len("json")] + "html", page_path(directory, host, evidence)]
            # The page of the run that measured tells what that run changed and how long it took: it stays.
            stays = _stored(path) == evidence and all(map(os.path.exists, pages))
            write_json(path, evidence)
            for other in () if stays else pages:
                write_changed(other, _page(evidence, host, result, own, command))
            written += [path] if stays else [path, *pages]
    return written


def page_path(directory: str, host: str, evidence: Mapping[str, Any]) -> str:
    """Where the page of this evidence's release lies. The id is what a host said: it names no directory."""
    name = re.sub(r"[^\w-]", "_", str(evidence.get("release")))
    return os.path.join(os.path.expanduser(directory), host, f"{name}.html")


def _stored(path: str) -> Optional[Dict[str, Any]]:
    try:
        return read_json(path, "reading a report")
    except InputError:
        return None


def _page(evidence: Mapping[str, Any], host: str, result: Mapping[str, Any], own: bool, command: str) -> str:
    """:param own: whether ``result`` is of the run that measured it."""
    return page.page(
        {**evidence, "host": host},
        stages=_stages(result) if own else None,
        differs=_differs(result) if own else None,
        command=command,
        serving=_serving(result.get("status") or {}),
    )


def _serving(state: Mapping[str, Any]) -> str:
    if not state:
        return ""
    if not state.get("serving"):
        return "nothing serves."
    alone = "" if state.get("speculation", True) else ", without speculation"
    return f"release {state.get('release')} serves at {state.get('endpoint')}{alone}."


def _stages(result: Mapping[str, Any]) -> Optional[Dict[str, float]]:
    """Seconds per step, under the names that a person gives them."""
    taken = (result.get("result") or {}).get("stages") or {}
    return {said: taken[state] for state, said in _STAGES.items() if state in taken} or None


def _differs(result: Mapping[str, Any]) -> Optional[List[Dict[str, Any]]]:
    """What the run changed; None for a first deploy, where everything is new."""
    told: List[Dict[str, Any]] = result.get("differs") or []
    return told if any(entry["before"] is not None for entry in told) else None


def summary(result: Mapping[str, Any], host: str, prompts: str = "", reports: str = "") -> str:
    """The table at the end of a host's run; empty where nothing was ever measured.

    :param host: the inventory's name.
    :param prompts: the prompt set: its first question is the request to try, since a gate says nothing
        about other kinds of questions.
    :param reports: where the page of this evidence lies.
    """
    evidence: Optional[Mapping[str, Any]] = result.get("evidence")
    if not evidence:
        return ""
    state: Mapping[str, Any] = result.get("status") or {}
    green = state.get("serving") and state.get("release") == evidence.get("release")
    table = report.table(
        {**evidence, "host": host},
        stages=_stages(result),
        differs=_differs(result),
        curl=curl(state, evidence, prompts) if green else None,
    )
    shown = page_path(reports, host, evidence) if reports else ""
    return f"{table}\n\n  page  {repeat.told(shown, os.getcwd())}" if os.path.exists(shown) else table


def brief(result: Dict[str, Any]) -> Dict[str, Any]:
    """A failure without what the table, the reports and the journal say already: Ansible prints it all."""
    if not result.get("failed"):
        return result
    return {key: value for key, value in result.items() if key not in _SAID_ELSEWHERE}


def curl(state: Mapping[str, Any], evidence: Mapping[str, Any], prompts: str = "") -> str:
    """The request to try, with the template settings that were measured.

    The API key is a variable of the reader's shell: what we print ends up in logs.
    """
    body = {
        "model": state["model"],
        "messages": _question(prompts),
        "temperature": 0,
        "max_tokens": 64,
    }
    template = (evidence.get("settings") or {}).get("template")
    if template:
        body["chat_template_kwargs"] = template
    words = ["curl", "-s", shlex.quote(f"{state['endpoint']}/v1/chat/completions")]
    words += ["-H", "'Content-Type: application/json'"]
    if state.get("api_key"):
        words += ["-H", '"Authorization: Bearer $VLLM_API_KEY"']
    return " ".join([*words, "-d", shlex.quote(json.dumps(body))])


def _question(prompts: str) -> List[Dict[str, str]]:
    for text in prompts.splitlines():
        messages: List[Dict[str, str]] = json.loads(text)["messages"]
        return messages
    return [{"role": "user", "content": "Hello"}]
