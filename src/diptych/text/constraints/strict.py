"""`strict: true` of a tool: the schemas it accepts, and what it adds to them."""

from typing import cast

from diptych.text.constraints.grammar import invalid

MAX_DEPTH = 64
_REFUSED = ("oneOf", "allOf", "not", "if", "then", "else", "patternProperties", "propertyNames")


def strict_parameters(schema: object, param: str) -> dict[str, object]:
    """The schema with every property required and no others allowed, in every object."""
    if schema is None or schema == {}:
        schema = {"type": "object", "properties": {}}
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise invalid("parameters is a schema of type object", param)
    return cast(dict[str, object], _strict(schema, param, 0))


def _strict(schema: object, param: str, depth: int) -> object:
    if not isinstance(schema, dict):
        raise invalid("a strict schema is an object", param)
    if depth > MAX_DEPTH:
        raise invalid(f"schemas nest at most {MAX_DEPTH} deep", param)
    for keyword in _REFUSED:
        if keyword in schema:
            raise invalid(f"{keyword} is not part of strict mode", f"{param}.{keyword}")
    if not {"type", "anyOf", "$ref"} & set(schema):
        raise invalid("a strict schema needs type, anyOf or $ref", param)
    types = schema.get("type")
    names = types if isinstance(types, list) else [types]
    out = dict(schema)
    if "object" in names:
        out |= _closed(schema, param, depth)
    if "array" in names:
        if "items" not in schema:
            raise invalid("an array needs items", f"{param}.items")
        out["items"] = _strict(schema["items"], f"{param}.items", depth + 1)
    if isinstance(schema.get("anyOf"), list):
        out["anyOf"] = [
            _strict(s, f"{param}.anyOf[{i}]", depth + 1) for i, s in enumerate(schema["anyOf"])
        ]
    for keyword in ("$defs", "definitions"):
        if isinstance(schema.get(keyword), dict):
            out[keyword] = {
                name: _strict(s, f"{param}.{keyword}.{name}", depth + 1)
                for name, s in schema[keyword].items()
            }
    return out


def _closed(schema: dict[str, object], param: str, depth: int) -> dict[str, object]:
    if schema.get("additionalProperties", False) is not False:
        raise invalid(
            "additionalProperties is false in strict mode", f"{param}.additionalProperties"
        )
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise invalid("properties is an object", f"{param}.properties")
    inner = {
        name: _strict(s, f"{param}.properties.{name}", depth + 1) for name, s in properties.items()
    }
    named = schema.get("required", [])
    unknown = [n for n in named if n not in inner] if isinstance(named, list) else []
    if unknown:
        raise invalid("required names a property that is not there", f"{param}.required")
    return {"properties": inner, "required": list(inner), "additionalProperties": False}
