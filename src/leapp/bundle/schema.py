"""A JSON Schema of the bundle's YAML, made from the types that read and write it."""

from __future__ import annotations

from typing import Any

import msgspec

from leapp.bundle.contract_yaml import MODELS, PIPELINE, SYSTEM
from leapp.bundle.files import SHA256
from leapp.bundle.integrity import INTEGRITY, UNSEALED
from leapp.graph.contract import CONFIG_VERSION, ModelFile, Port, Wiring
from leapp.graph.dtypes import DTYPES

_SHA256 = {"type": "string", "pattern": f"^{SHA256}$"}


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a bundle description."""
    _, parts = msgspec.json.schema_components([Port, ModelFile, Wiring], ref_template="#/$defs/{name}")
    for name in ("Port", "ModelFile"):
        # In the file, extra keys are written beside the known ones.
        parts[name]["properties"].pop("extra")
        parts[name]["additionalProperties"] = True
    parts["Port"]["properties"]["dtype"] = {"enum": sorted(DTYPES)}
    parts["Port"]["properties"]["shape"] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    axis = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None}
    parts["Port"]["properties"]["batch_axis"] = axis
    parts["ModelFile"]["required"] = ["model_path", "md5sum", "sha256sum", "backend"]
    parts["Wiring"]["required"] = ["data_flow", "inputs", "outputs"]
    ports = {"type": "array", "items": {"$ref": "#/$defs/Port"}}
    parts["Node"] = _object({"inputs": ports, "outputs": ports, "parameters": {"$ref": "#/$defs/ModelFile"}})
    seal = _object({"digest": _SHA256, "files": {"type": "object", "additionalProperties": _SHA256}})
    seal["properties"] |= {"behaviour": _SHA256, "version": {"type": "integer", "minimum": 1}}  # missing in the first seals
    top = _object(
        {
            MODELS: {"type": "object", "additionalProperties": {"$ref": "#/$defs/Node"}},
            PIPELINE: {"$ref": "#/$defs/Wiring"},
            SYSTEM: {"type": "object"},
        }
    )
    top["properties"][INTEGRITY] = {"anyOf": [seal, {"const": UNSEALED}]}
    header = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"leapp bundle {CONFIG_VERSION}"}
    return {**header, **top, "$defs": parts}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}
