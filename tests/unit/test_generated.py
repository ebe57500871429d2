"""What is generated is what its tables say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import jsonschema
import pytest
from draftgate import spec_schema

from tests.specs import SPEC, changed


def test_generated_files_are_current(repo: Path) -> None:
    where = importlib.util.spec_from_file_location("generate", repo / "docs" / "generate.py")
    assert where and where.loader
    generate = importlib.util.module_from_spec(where)
    where.loader.exec_module(generate)
    for name, make in generate.GENERATED.items():
        assert (repo / "docs" / name).read_text("utf-8") == make(), f"run python3 docs/generate.py: {name}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("place.port", "8000"),
        ("place.port", 0),
        ("serve.engine", {}),
        ("gate.typo", 1),
        ("serve.environment.A", 1),
    ],
)
def test_the_schema_refuses_what_the_code_refuses(field: str, value: object) -> None:
    jsonschema.validate(SPEC, spec_schema.json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(field, value), spec_schema.json_schema())
