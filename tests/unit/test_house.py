"""The rules of the rooms, as checks over the whole tree.

Each check is a function from content to a list of problems, so that a broken sample can show that it sees;
the tree itself must have none.
"""

from __future__ import annotations

import ast
import base64
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.executor.module_common import modify_module
from ansible.module_utils.basic import AnsibleModule
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from draftgate.codes import CODES

from tests.conftest import REPO, import_module_file, load_plugins
from tests.results import tracked_files

MAX_PAYLOAD_BYTES = 200_000
MODULES = sorted(path.stem for path in (REPO / "library").glob("*.py"))
ROLES = sorted(path.parent.name for path in (REPO / "roles").glob("*/tasks"))
ROLE_KEYWORDS = {
    f"{prefix}{kind}_role" for prefix in ("", "ansible.builtin.") for kind in ("import", "include")
}

YAML_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "path": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "list": (list,),
    "dict": (dict,), "raw": (object,),
}  # fmt: skip


class _Loader(yaml.SafeLoader):
    """YAML as Ansible writes it: a tag such as ``!unsafe`` or ``!vault`` keeps its value."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: loader.construct_scalar(node))


def load(path: Path) -> Any:
    return yaml.load(path.read_text("utf-8"), _Loader) if path.exists() else None


def mappings(node: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a YAML document, the outer before the inner."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from mappings(child)


def yaml_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((REPO / folder).rglob("*.yml"))]


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((REPO / folder).rglob("*.py"))]


# Roles: defaults/main.yml is the public interface, and meta/argument_specs.yml says the same.


def type_problem(name: str, value: Any, option: Mapping[str, Any]) -> list[str]:
    """A default of another type than the option's; null and a template may become anything."""
    kind = option.get("type", "str")
    if value is None or (isinstance(value, str) and "{{" in value) or kind == "raw":
        return []
    if isinstance(value, YAML_TYPES[kind]) and isinstance(value, bool) == (kind == "bool"):
        return []
    return [f"{name}: the default {value!r} is not of type {kind}"]


def role_problems(defaults: Mapping[str, Any], entry_points: Mapping[str, Any]) -> list[str]:
    """Where the defaults and the argument specs of one role disagree in names, types or values."""
    problems = [] if "main" in entry_points else ["no argument spec for main"]
    documented: set[str] = set()
    for entry, spec in entry_points.items():
        for name, option in (spec.get("options") or {}).items():
            documented.add(name)
            where = f"{entry}: {name}"
            if option.get("required"):
                problems += [f"{where}: required, and yet it has a default"] if name in defaults else []
            elif name not in defaults:
                problems.append(f"{where}: not in defaults/main.yml")
            elif option.get("default") != defaults[name]:
                problems.append(
                    f"{where}: default {option.get('default')!r}, in defaults/main.yml {defaults[name]!r}"
                )
            else:
                problems += type_problem(where, defaults[name], option)
    return problems + [f"{name}: in no argument spec" for name in sorted(set(defaults) - documented)]


def entry_points_used(documents: list[Any]) -> set[tuple[str, str]]:
    """(role, tasks_from) wherever a role is called."""
    calls = [
        node[key]
        for document in documents
        for node in mappings(document)
        for key in ROLE_KEYWORDS & set(node)
    ]
    return {(call["name"], str(call.get("tasks_from", "main")).removesuffix(".yml")) for call in calls}


@pytest.mark.parametrize(
    ("defaults", "options", "expected"),
    [
        ({"a": 1}, {"a": {"type": "int", "default": 1}}, []),
        (
            {"a": None, "b": "{{ c }}"},
            {"a": {"type": "dict"}, "b": {"type": "int", "default": "{{ c }}"}},
            [],
        ),
        ({}, {"a": {"required": True}}, []),
        ({"a": 1}, {}, ["a: in no argument spec"]),
        ({}, {"a": {"default": "x"}}, ["main: a: not in defaults/main.yml"]),
        ({"a": 1}, {"a": {"type": "int", "default": 2}}, ["main: a: default 2, in defaults/main.yml 1"]),
        (
            {"a": True},
            {"a": {"type": "int", "default": True}},
            ["main: a: the default True is not of type int"],
        ),
        ({"a": "1"}, {"a": {"type": "int", "default": "1"}}, ["main: a: the default '1' is not of type int"]),
        ({"a": 1}, {"a": {"required": True}}, ["main: a: required, and yet it has a default"]),
    ],
)
def test_role_check_sees(defaults: dict[str, Any], options: dict[str, Any], expected: list[str]) -> None:
    assert role_problems(defaults, {"main": {"options": options}}) == expected


def test_roles_say_their_interface_twice_and_alike() -> None:
    problems = []
    for role in ROLES:
        folder = REPO / "roles" / role
        specs = load(folder / "meta" / "argument_specs.yml") or {}
        found = role_problems(load(folder / "defaults" / "main.yml") or {}, specs.get("argument_specs", {}))
        problems += [f"{role}: {problem}" for problem in found]
    assert not problems, "\n".join(problems)


def test_entry_points_that_are_used_have_an_argument_spec() -> None:
    problems = []
    for role, entry in sorted(entry_points_used([load(path) for path in yaml_files("playbooks", "roles")])):
        specs = load(REPO / "roles" / role / "meta" / "argument_specs.yml") or {}
        if entry not in specs.get("argument_specs", {}):
            problems.append(f"{role}: no argument spec for tasks_from: {entry}")
    assert not problems, "\n".join(problems)


def private_names(node: Mapping[str, Any]) -> Iterator[str]:
    """Variables that one task or block sets. What it passes to another role is that role's public name."""
    yield from [node["register"]] if "register" in node else []
    for keyword in ("set_fact", "ansible.builtin.set_fact"):
        yield from (name for name in node.get(keyword) or {} if name != "cacheable")
    if not ROLE_KEYWORDS & set(node):
        yield from node.get("vars") or {}
    yield from (value for key, value in (node.get("loop_control") or {}).items() if key.endswith("_var"))


def test_private_names_are_seen() -> None:
    task = {"register": "a", "ansible.builtin.set_fact": {"b": 1, "cacheable": True}, "vars": {"c": 1}}
    assert list(private_names({**task, "loop_control": {"loop_var": "d", "label": "e"}})) == [
        "a",
        "b",
        "c",
        "d",
    ]
    assert list(private_names({"ansible.builtin.include_role": {"name": "x"}, "vars": {"x_public": 1}})) == []


def test_what_a_role_sets_is_private_or_announced() -> None:
    """A fact for later roles carries the role's name and is named where the role describes itself."""
    problems = []
    for role in ROLES:
        folder = REPO / "roles" / role
        documents = [
            load(path) for name in ("tasks", "handlers") for path in sorted((folder / name).rglob("*.yml"))
        ]
        names = [
            name for document in documents for node in mappings(document) for name in private_names(node)
        ]
        names += [name for path in sorted((folder / "vars").rglob("*.yml")) for name in load(path) or {}]
        meta = folder / "meta" / "argument_specs.yml"
        said = set(re.findall(r"\w+", meta.read_text("utf-8"))) if meta.exists() else set()
        announced = {name for name in said if name.startswith(f"{role}_")}
        problems += [
            f"{role}: {name}" for name in names if not name.startswith(f"__{role}_") and name not in announced
        ]
    assert not problems, "\n".join(problems)


# Playbooks and tasks.


def play_problems(play: Mapping[str, Any]) -> list[str]:
    """What is more than order: a play names hosts and roles, or imports another playbook."""
    sections = ("pre_tasks", "tasks", "post_tasks", "handlers")
    tasks = [task for section in sections for task in play.get(section) or []]
    return [f"{task.get('name', task)}: not a role" for task in tasks if not ROLE_KEYWORDS & set(task)]


def test_play_check_sees() -> None:
    role = {"name": "Serve", "ansible.builtin.import_role": {"name": "vllm_server"}}
    shell = {"name": "Look", "ansible.builtin.command": "true"}
    assert play_problems({"hosts": "all", "tasks": [role]}) == []
    assert play_problems({"hosts": "all", "tasks": [role, shell]}) == ["Look: not a role"]
    assert play_problems({"hosts": "all", "pre_tasks": [{"block": [role]}]}) != []


def test_playbooks_hold_roles_and_imports_only() -> None:
    files = yaml_files("playbooks")
    assert [
        f"{path.name}: {problem}" for path in files for play in load(path) for problem in play_problems(play)
    ] == []


def test_no_failure_is_ignored() -> None:
    files = yaml_files("playbooks", "roles")
    assert [str(path) for path in files for node in mappings(load(path)) if "ignore_errors" in node] == []


def test_the_root_playbook_only_imports() -> None:
    text = (REPO / "deploy.yml").read_text("utf-8")
    assert len(text.splitlines()) == 3
    (play,) = yaml.safe_load(text)
    assert play["ansible.builtin.import_playbook"] == "playbooks/deploy.yml"
    assert set(play) == {"name", "ansible.builtin.import_playbook"}


# Modules: the documentation is the argument spec, and the payload stays small.

COMPARED = {
    "type": "str",
    "default": None,
    "required": False,
    "choices": None,
    "elements": None,
    "aliases": None,
}


def option_problems(documented: Mapping[str, Any], spec: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Where documented options and an argument spec differ, suboptions included."""
    both = sorted(set(documented) & set(spec))
    problems = [f"{prefix}{name}: only in one of them" for name in sorted(set(documented) ^ set(spec))]
    for name in both:
        doc, real = documented[name], spec[name]
        if not doc.get("description"):
            problems.append(f"{prefix}{name}: no description")
        for key, usual in COMPARED.items():
            if doc.get(key, usual) != real.get(key, usual):
                problems.append(f"{prefix}{name}.{key}: documented {doc.get(key)!r}, real {real.get(key)!r}")
        inner = (doc.get("suboptions") or {}, real.get("options") or {})
        problems += option_problems(*inner, prefix=f"{prefix}{name}.")
    return problems


class _SpecSeen(Exception):
    """Carries the arguments that a module constructs its AnsibleModule with."""


def constructor_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def init(self: AnsibleModule, **arguments: Any) -> None:
        raise _SpecSeen(arguments)

    monkeypatch.setattr(AnsibleModule, "__init__", init)
    with pytest.raises(_SpecSeen) as seen:
        import_module_file(name).main()
    arguments: dict[str, Any] = seen.value.args[0]
    return arguments


def documentation_problems(name: str, module: Any, arguments: Mapping[str, Any]) -> list[str]:
    """What is missing or wrong in DOCUMENTATION, EXAMPLES and RETURN of one module."""
    blocks = {
        block: yaml.safe_load(getattr(module, block, "") or "")
        for block in ("DOCUMENTATION", "EXAMPLES", "RETURN")
    }
    missing = [f"no {block}" for block, content in blocks.items() if not content]
    if missing:
        return missing
    documentation, examples, returns = blocks.values()
    problems = option_problems(documentation.get("options") or {}, arguments["argument_spec"])
    if documentation["module"] != name:
        problems.append(f"documented as {documentation['module']}")
    if not any(name in task for task in examples):
        problems.append("no example uses it")
    for key, value in returns.items():
        problems += [
            f"RETURN {key}: no {part}" for part in ("description", "returned", "type") if part not in value
        ]
    return problems


@pytest.mark.parametrize(
    ("documented", "spec", "expected"),
    [
        ({"a": {"description": "x", "type": "int"}}, {"a": {"type": "int", "no_log": False}}, []),
        ({"a": {"description": "x"}}, {}, ["a: only in one of them"]),
        ({}, {"a": {}}, ["a: only in one of them"]),
        ({"a": {}}, {"a": {}}, ["a: no description"]),
        ({"a": {"description": "x"}}, {"a": {"type": "int"}}, ["a.type: documented None, real 'int'"]),
        ({"a": {"description": "x"}}, {"a": {"required": True}}, ["a.required: documented None, real True"]),
        (
            {
                "a": {
                    "description": "x",
                    "type": "dict",
                    "suboptions": {"b": {"description": "y", "default": 1}},
                }
            },
            {"a": {"type": "dict", "options": {"b": {"default": 2}}}},
            ["a.b.default: documented 1, real 2"],
        ),
    ],
)
def test_option_check_sees(documented: dict[str, Any], spec: dict[str, Any], expected: list[str]) -> None:
    assert option_problems(documented, spec) == expected


def test_modules_are_documented_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = []
    for name in MODULES:
        found = documentation_problems(
            name, import_module_file(name), constructor_arguments(name, monkeypatch)
        )
        problems += [f"{name}: {problem}" for problem in found]
    assert not problems, "\n".join(problems)


def payload(name: str, path: Path) -> bytes:
    """The archive that Ansible builds for one module, compressed as by default.

    About 125 kB of it are Ansible's own; base64 makes it a third longer on the wire.
    """
    load_plugins()
    built = modify_module(
        module_name=name,
        module_path=str(path),
        module_args={},
        templar=Templar(loader=DataLoader()),
        task_vars={"ansible_python_interpreter": "/usr/bin/python3"},
        module_compression="ZIP_DEFLATED",
    )
    (archive,) = re.findall(rb"[A-Za-z0-9+/=]{10000,}", built.b_module_data)
    return base64.b64decode(archive)


def test_a_payload_holds_what_the_module_imports(tmp_path: Path) -> None:
    plain = "from ansible.module_utils.basic import AnsibleModule\n"
    sizes: list[int] = []
    for imported in ("", "from ansible.module_utils.draftgate import spec\n"):
        module = tmp_path / f"sample{len(sizes)}.py"
        module.write_text(plain + imported, "utf-8")
        sizes.append(len(payload(module.stem, module)))
    assert 20_000 < sizes[0] < sizes[1]


def test_payloads_stay_small() -> None:
    sizes = {name: len(payload(name, REPO / "library" / f"{name}.py")) for name in MODULES}
    too_large = [f"{name}: {size} bytes" for name, size in sizes.items() if size >= MAX_PAYLOAD_BYTES]
    assert not too_large, "\n".join(too_large)


# The package: the standard library of Python 3.9 alone. `make lint` runs vermin for what is newer there;
# ast sees syntax, and vermin does not see a union of types that is evaluated.


GLUE = ("ansible_glue.py", "ansible")


def foreign_imports(tree: ast.AST) -> list[str]:
    """Absolute imports of anything but the standard library."""
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [
        str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level
    ]
    return [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]


def _annotations(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if isinstance(annotation := getattr(node, field, None), ast.AST):
                yield from ast.walk(annotation)


def evaluated_unions(tree: ast.AST) -> list[int]:
    """Lines with ``X | None`` or ``int | str`` outside an annotation: a TypeError before Python 3.10."""
    types = {"None", "bool", "bytes", "dict", "float", "int", "list", "object", "set", "str", "tuple", "type"}
    postponed = set(_annotations(tree))
    unions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and node not in postponed
    ]
    return [node.lineno for node in unions if {ast.unparse(node.left), ast.unparse(node.right)} & types]


@pytest.mark.parametrize(
    ("source", "imports", "unions"),
    [
        ("import os.path\nfrom . import errors\nfrom json import dumps", [], 0),
        ("def f():\n    import requests", ["requests"], 0),
        ("from ansible.module_utils import basic", ["ansible.module_utils"], 0),
        ("def f(a: int | None) -> str | None:\n    b: int | str = 1 | 2", [], 0),
        ("isinstance(1, int | str)", [], 1),
        ("from typing import Optional\nAlias = str | None", [], 1),
    ],
)
def test_import_and_union_checks_see(source: str, imports: list[str], unions: int) -> None:
    tree = ast.parse(source)
    assert (foreign_imports(tree), len(evaluated_unions(tree))) == (imports, unions)


def test_the_package_needs_python_3_9_and_nothing_else() -> None:
    problems = []
    for path in python_files("module_utils"):
        tree = ast.parse(path.read_text("utf-8"), str(path), feature_version=(3, 9))
        foreign = [name for name in foreign_imports(tree) if (path.name, name.partition(".")[0]) != GLUE]
        problems += [f"{path.name}: imports {name}" for name in foreign]
        problems += [f"{path.name}:{line}: a union that is evaluated" for line in evaluated_unions(tree)]
    assert not problems, "\n".join(problems)


def test_every_code_is_in_the_table() -> None:
    files = [
        path for path in tracked_files("*.py", "*.yml", "*.md", "*.j2", "*.cfg") if "tests" not in path.parts
    ]
    used = {
        (code, path.name) for path in files for code in re.findall(r"\bDG\d{3}\b", path.read_text("utf-8"))
    }
    problems = sorted(f"{name}: {code}" for code, name in used if code not in CODES)
    assert not problems, "\n".join(problems)


# The tree speaks of the project alone. Written with a mark in them, so that this file passes its own check.
MACHINE_PATHS = ["(?<![\\w.~-])/w^ork/", "/opt/w^heels", "/opt/p^ypi", "/root/\\.p^yenv"]
REGISTRY_HOSTS = ["p^ypi\\.org", "python^hosted", "debian^\\.org", "n^pmjs\\."]
FOREIGN = re.compile("|".join(MACHINE_PATHS + REGISTRY_HOSTS).replace("^", ""))


def test_foreign_names_are_seen() -> None:
    foreign = (
        "/w^ork/x /opt/w^heels/ https://p^ypi.org/simple deb.debian^.org files.python^hosted.org".replace(
            "^", ""
        )
    )
    near = "a frame/w^ork/x, ~/w^ork/x and https://download.pytorch.org/whl/cpu"
    assert [len(FOREIGN.findall(word)) for word in foreign.split()] == [1, 1, 1, 1, 1]
    assert FOREIGN.findall(near.replace("^", "")) == []


def test_tracked_files_name_no_machine_and_no_registry() -> None:
    problems = []
    for path in tracked_files():
        found = FOREIGN.findall(path.read_bytes().decode("utf-8", "replace"))
        problems += [f"{path.relative_to(REPO)}: {name}" for name in found]
    assert not problems, "\n".join(problems)
