"""The spec's JSON Schema, made from the table that :func:`spec.validate` reads. For people and editors."""

from __future__ import annotations

from typing import Any, Dict

from .spec import FIELDS, PARTS


def json_schema() -> Dict[str, Any]:
    """The spec's JSON Schema (draft 2020-12)."""
    parts = {
        part: {
            "type": "object",
            "additionalProperties": False,
            "required": sorted(fields),
            "properties": {name: field.schema for name, field in sorted(fields.items())},
        }
        for part, fields in FIELDS.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Draftgate spec",
        "type": "object",
        "additionalProperties": False,
        "required": list(PARTS),
        "properties": parts,
    }
