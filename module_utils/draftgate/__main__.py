"""The host's own command: ``draftgate status | recover | abort | evidence | contract | probe | …``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Dict, List, Optional

from . import (
    __version__,
    argv,
    contract,
    page,
    preflight,
    probe,
    progress,
    release,
    runtime_job,
    status,
    switch,
)
from .backend import choose
from .backend.base import Backend
from .clocks import Clocks
from .errors import DraftgateError, InputError
from .files import is_no_room, read_json, write_json
from .findings import ERROR
from .layout import Home

SWITCH_STAGES = ["stop", "start", "gate", "done"]


def main(argv: Optional[List[str]] = None) -> int:
    """Parse, run one command, give its exit code.

    A :class:`DraftgateError` and what the system refuses are one line on stderr; the latter has an exit code
    that no command gives as its answer.
    """
    try:
        arguments = _parser().parse_args(argv)
        return int(arguments.run(Home.at(arguments.home), arguments))
    except DraftgateError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    except OSError as exc:
        where = f"{exc.filename}: " if exc.filename else ""
        step = " Make room on its disk and run the same again." if is_no_room(exc) else ""
        sys.stderr.write(f"draftgate: {where}{exc.strerror or exc}.{step}\n")
        return os.EX_IOERR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="draftgate", description="The host's side of Draftgate.")
    parser.add_argument(
        "--home", default="auto", help="where the state lies (default: /var/lib/draftgate or ~/.draftgate)"
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)

    reading = commands.add_parser(
        "status", help="what serves, by which evidence; exit 0 when it serves gated"
    )
    reading.add_argument("--json", action="store_true", help="the same as JSON")
    reading.set_defaults(run=_status)

    commands.add_parser("recover", help="end an interrupted switch and start what is activated").set_defaults(
        run=_recover
    )

    commands.add_parser(
        "abort", help="end a running switch now and bring back what was activated"
    ).set_defaults(run=_abort)

    switching = commands.add_parser("switch", help="the switch job (started by the deploy)")
    switching.add_argument("--attempt", required=True)
    switching.set_defaults(run=_switch)

    shown = commands.add_parser("evidence", help="the evidence of what serves, as JSON")
    shown.add_argument("--html", action="store_true", help="as a page that needs nothing but itself")
    shown.set_defaults(run=_evidence)

    installing = commands.add_parser("install-runtime", help="the runtime job (started by the deploy)")
    installing.add_argument("--name", required=True)
    installing.set_defaults(run=_install_runtime)

    probing = commands.add_parser("probe", help="a target's tokenizer: its ids, and what may be the mask")
    probing.add_argument("path", help="the target's directory")
    probing.add_argument("--config", help="its config.json (default: beside the tokenizer)")
    probing.add_argument("--window", type=_window, metavar="A:B", help="ids to show (default: the last ones)")
    probing.add_argument("--mask", type=int, metavar="ID", help="a claimed mask; exit 1 when it is wrong")
    probing.add_argument("--json", action="store_true", help="the same as JSON")
    probing.set_defaults(run=_probe)
    _add_contract(commands)
    return parser


def _add_contract(commands: Any) -> None:
    """Files alone: no installation is needed."""
    judging = commands.add_parser("contract", help="judge a pair by its files; exit 0 when nothing stops it")
    judging.add_argument("drafter", help="the drafter's directory")
    judging.add_argument("target", help="the target's directory")
    judging.add_argument("--engine", required=True, type=preflight.engine_of, help="as in vllm==0.32.0")
    judging.add_argument("--k", required=True, type=int, help="num_speculative_tokens")
    judging.add_argument("--gpu", default={}, type=preflight.gpu_of, help="cpu, or as in sm_86x2")
    judging.add_argument("--compare", type=preflight.engine_of, help="an engine to compare with")
    for name, what in (
        ("override", "merged over the drafter's config"),
        ("server", "the engine's arguments in snake case"),
        ("environment", "the engine's environment variables"),
        ("packages", "versions of packages beside the engine"),
    ):
        judging.add_argument(f"--{name}", default={}, type=_json_object, metavar="JSON", help=what)
    judging.add_argument("--json", action="store_true", help="the same as JSON")
    judging.set_defaults(run=_contract)


def _json_object(text: str) -> Dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise InputError("reading an option", f"{text!r}: {exc}", "a JSON object") from exc
    if not isinstance(value, dict):
        raise InputError("reading an option", repr(text), "a JSON object")
    return value


def _say(text: str) -> None:
    """Not every terminal knows every character: a piece of a vocabulary or a path may have any."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _backend(home: Home) -> Backend:
    return choose(home, release.recorded_backend(home), supervisor_lock="")


def _status(home: Home, arguments: argparse.Namespace) -> int:
    state = status.read(home, _backend(home), Clocks())
    _say(json.dumps(state, indent=2, sort_keys=True) if arguments.json else status.table(state))
    return 0 if state["serving"] else 1


def _recover(home: Home, _arguments: argparse.Namespace) -> int:
    backend, clocks = _backend(home), Clocks()
    backend.ensure()
    working = switch.Switch(home, backend, clocks, progress.silent)
    with switch.exclusive(home, f"recover, pid {os.getpid()}", clocks):
        working.settle()
        working.revive()
    return _status(home, argparse.Namespace(json=False))


def _abort(home: Home, arguments: argparse.Namespace) -> int:
    backend = _backend(home)
    backend.ensure()
    backend.remove_job(release.JOB)
    return _recover(home, arguments)


def _switch(home: Home, arguments: argparse.Namespace) -> int:
    clocks = Clocks()
    wish = read_json(home.wish, "reading the wish of this switch")
    backend = choose(home, wish["spec"]["place"]["backend"], supervisor_lock="")
    durations = progress.read(home.durations)
    report = progress.ProgressFile(release.progress_path(home), SWITCH_STAGES, durations, clocks.now)
    hold = switch.hold_while_asked(home, clocks)
    code = switch.run(switch.Switch(home, backend, clocks, report, hold, arguments.attempt))
    write_json(home.durations, {**durations, **report.close()})
    return code


def _evidence(home: Home, arguments: argparse.Namespace) -> int:
    stored = release.current_evidence(home)
    if stored is None:
        raise InputError("reading the evidence of what serves", "there is none", "", "Deploy first.")
    if arguments.html:
        sys.stdout.buffer.write(page.page(stored).encode("utf-8"))  # in whatever locale
    else:
        sys.stdout.write(json.dumps(stored, indent=2, sort_keys=True) + "\n")
    return 0


def _install_runtime(home: Home, arguments: argparse.Namespace) -> int:
    return runtime_job.run(home, arguments.name, Clocks())


def _window(text: str) -> Dict[str, int]:
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not two ids, as in 248040:248080")
    return {"first": int(first), "last": int(last)}


def _probe(_home: Home, arguments: argparse.Namespace) -> int:
    result = probe.probe(
        arguments.path, config=arguments.config, window=arguments.window, mask_token_id=arguments.mask
    )
    _say(json.dumps(result, indent=2, sort_keys=True) if arguments.json else probe.table(result))
    return 1 if any(finding["severity"] == ERROR for finding in result["findings"]) else 0


def _contract(_home: Home, arguments: argparse.Namespace) -> int:
    given = arguments
    argv.validate_args(given.server)
    verdict = contract.judge(
        given.drafter,
        given.target,
        engine=given.engine,
        num_speculative_tokens=given.k,
        overrides=given.override,
        gpu=given.gpu,
        server=given.server,
        environment=given.environment,
        packages=given.packages,
        compare_with=given.compare,
    ).as_dict()
    subject = preflight.Subject("", given.drafter, given.target, given.engine, given.gpu, given.k)
    told = preflight.document(subject, verdict)
    _say(json.dumps(told, indent=2, sort_keys=True) if given.json else preflight.table(subject, verdict))
    return 0 if told["verdict"] == preflight.READY else 1


if __name__ == "__main__":
    sys.exit(main())
