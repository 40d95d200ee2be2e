"""DSML tool calls: the block, its invocations and their parameters, as a grammar.

The block is written exactly as the prompt renders it in history, so what a model wrote is what the
next turn's prompt says, and the cache hits. A string parameter is raw text up to the closing tag;
every other value is JSON with Python's spacing.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from diptych.core.errors import BadRequest
from diptych.text.constraints.grammar import (
    ANY_TEXT,
    EMPTY,
    NOTHING,
    Chars,
    Node,
    Rule,
    Special,
    Text,
    alt,
    chars,
    complement,
    invalid,
    lexeme,
    optional,
    repeat,
    seq,
)
from diptych.text.constraints.json_text import PYTHON
from diptych.text.constraints.keywords import (
    Schema,
    count,
    is_type,
    string_content,
    types_of,
)
from diptych.text.constraints.references import resolve
from diptych.text.constraints.schema import SchemaReader
from diptych.text.constraints.soundness import sound

DSML = "｜DSML｜"
_MARK = Special(DSML)
_OPEN = seq(Text("<"), _MARK, Text(" calls>\n"))
_CLOSE = seq(Text("</"), _MARK, Text(" calls>"))
_NAME = lexeme(repeat(Chars(complement(chars('"<>\n').ranges)), 1, None))
_COUNTED = Chars(complement(chars("<").ranges))  # not what may start the closing tag: see string_of
_MAX_HOPS = 64


def read_tool_calls(
    source: Mapping[str, object], answer: Node | None
) -> tuple[Node, dict[str, Node]]:
    """Free text or `answer` or a block of calls; a block alone if calls are forced."""
    rules: dict[str, Node] = {}
    invocations: list[Node] = []
    tools = cast(list[tuple[str, object]], source["tools"])
    loose = cast(list[str], source.get("loose", []))
    for index, (name, parameters) in zip(cast(list[int], source["indexes"]), tools, strict=True):
        param = f"tools[{index}].function"
        if any(c in name for c in '"<>\n'):
            raise invalid("this name cannot be written in a call", f"{param}.name")
        prefix = f"t{index}."
        if name not in loose:
            body = _Parameters(parameters, f"{param}.parameters", prefix, rules).body()
        else:
            body = _loose(parameters, f"{param}.parameters", prefix, rules)
        rules[f"invoke{index}"] = seq(
            Text("<"), _MARK, Text(f' invoke name="{name}">\n'), body,
            Text("\n</"), _MARK, Text(" invoke>\n"),
        )  # fmt: skip
        invocations.append(Rule(f"invoke{index}"))
    some = repeat(alt(*invocations), 1, None if source["parallel"] else 1)
    inside = seq(some, _CLOSE)
    if source["forced"]:
        return inside if source["opened"] else seq(Text("\n\n"), _OPEN, inside), rules
    block = seq(_OPEN, inside)
    if answer is not None:
        return alt(answer, seq(repeat(Text("\n"), 0, 2), block)), rules
    return seq(ANY_TEXT, optional(block)), rules


def _loose(schema: object, param: str, prefix: str, rules: dict[str, Node]) -> Node:
    """Parameters of a schema that is kept to where that can be done, in its order and no others."""
    if not isinstance(schema, dict) or not schema.get("properties"):
        return _any_parameters(rules)
    own: dict[str, Node] = {}
    try:
        body = _Parameters(schema, param, prefix, own).body()
        sound({**own, "root": body}, param)
    except BadRequest:
        return _any_parameters(rules)
    rules.update(own)
    return body


def _any_parameters(rules: dict[str, Node]) -> Node:
    """Parameters of a tool without a strict schema: any names, any values."""
    if "parameters" not in rules:
        reader = SchemaReader({}, PYTHON, "tools", "t.")
        value = reader.value({"type": ["null", "boolean", "number", "array", "object"]}, "#")
        rules.update(reader.finish())
        rules["parameter"] = alt(_tag(_NAME, True, ANY_TEXT), _tag(_NAME, False, value))
        rules["parameters"] = optional(
            seq(Rule("parameter"), repeat(seq(Text("\n"), Rule("parameter")), 0, None))
        )
    return Rule("parameters")


def _tag(name: Node, is_string: bool, value: Node) -> Node:
    return seq(
        Text("<"), _MARK, Text(' parameter name="'), name,
        Text(f'" string="{"true" if is_string else "false"}">'), value,
        Text("</"), _MARK, Text(" parameter>"),
    )  # fmt: skip


class _Parameters:
    """The parameters of one schema in its order; those that are not required may be missing."""

    def __init__(self, schema: object, param: str, prefix: str, rules: dict[str, Node]) -> None:
        self.schema = cast(Schema, schema)
        self.param = param
        self.rules = rules
        self.prefix = prefix
        self.reader = SchemaReader(schema, PYTHON, param, prefix)

    def body(self) -> Node:
        """Each with a line end before it, but for the first that is there."""
        properties = cast(dict[str, object], self.schema["properties"])
        required = self.schema.get("required", ())
        found: list[tuple[Node, bool]] = []
        for name, schema in properties.items():
            path = f"#.properties.{name}"
            if any(c in name for c in '"<>\n'):
                raise invalid("this name cannot be written in a call", self.reader.at(path))
            is_required = isinstance(required, list) and name in required
            found.append((self.parameter(Text(name), schema, path, 0), is_required))
        self.rules.update(self.reader.finish())
        if all(is_required for _, is_required in found):
            lines = (seq(Text("\n"), node) if i else node for i, (node, _) in enumerate(found))
            return seq(*lines)
        return self.first_of(found)

    def first_of(self, found: Sequence[tuple[Node, bool]]) -> Node:
        """Any of them may be the first, up to one that is required; rules keep it linear."""
        start: Node = EMPTY
        after: Node = EMPTY
        for number, (node, is_required) in reversed(list(enumerate(found))):
            begun = seq(node, after)
            start = begun if is_required else alt(begun, start)
            line = seq(Text("\n"), node)
            rest = seq(line if is_required else optional(line), after)
            self.rules[f"{self.prefix}rest{number}"] = rest
            self.rules[f"{self.prefix}from{number}"] = start
            after, start = Rule(f"{self.prefix}rest{number}"), Rule(f"{self.prefix}from{number}")
        return start

    def parameter(self, name: Node, schema: object, path: str, hops: int) -> Node:
        """One parameter: its string values raw, the others as JSON."""
        if not isinstance(schema, dict) or hops > _MAX_HOPS:
            raise invalid("this schema cannot be a parameter's", self.reader.at(path))
        if "$ref" in schema:
            self.reader.alone(schema, "$ref", path)
            target = resolve(self.schema, str(schema["$ref"]), self.reader.at(f"{path}.$ref"))
            return self.parameter(name, target, str(schema["$ref"]), hops + 1)
        if "anyOf" in schema:
            self.reader.alone(schema, "anyOf", path)
            options = enumerate(cast(list[object], schema["anyOf"]))
            return alt(
                *(self.parameter(name, s, f"{path}.anyOf[{i}]", hops + 1) for i, s in options)
            )
        where = self.reader.at(path)
        types = types_of(schema, where)
        others = [t for t in types if t != "string"]
        raw = _tag(name, True, self.raw(schema, path)) if "string" in types else NOTHING
        if not others:
            self.reader.value(schema, path)  # for its checks
            return raw
        value = self.reader.value({**schema, "type": others}, path)
        return alt(raw, _tag(name, False, value)) if value != NOTHING else raw

    def raw(self, schema: Schema, path: str) -> Node:
        """The string values, as they stand between the tags."""
        where = self.reader.at(path)
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            texts = [v for v in cast(list[object], values) if is_type(v, "string")]
            return alt(*(Text(str(v)) for v in texts))
        content = string_content(schema, where)
        if content is not None:
            return content
        least, most = count(schema, "minLength", where) or 0, count(schema, "maxLength", where)
        if most is not None and most < least:
            return NOTHING
        if most is None and least == 0:
            return ANY_TEXT
        if most is not None:
            return repeat(_COUNTED, least, most)
        return seq(repeat(_COUNTED, least, None), optional(seq(Text("<"), ANY_TEXT)))
