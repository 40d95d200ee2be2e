"""JSON Schema, read into a grammar that generates valid documents only.

Every keyword is either enforced exactly, or an annotation, or refused with its path: nothing is
ignored. Properties come in the order of the schema, further ones after them. Where a keyword's
language is not regular in the order of the text (`uniqueItems`, `not`, `if`, …) it is refused.
"""

from collections.abc import Sequence
from typing import cast

from diptych.text.constraints.grammar import (
    NOTHING,
    Lexeme,
    Node,
    Rule,
    alt,
    invalid,
    optional,
    repeat,
    seq,
)
from diptych.text.constraints.json_text import (
    INTEGER,
    NULL,
    NUMBER,
    STRING,
    TRUE_FALSE,
    Layout,
    any_value_rules,
    array_of,
    constant,
    joined,
    quoted,
    string_of,
)
from diptych.text.constraints.keywords import (
    Schema,
    Types,
    check_keywords,
    count,
    is_assertion,
    is_type,
    number_node,
    string_content,
    types_of,
)
from diptych.text.constraints.objects import object_node, object_shape
from diptych.text.constraints.references import are_disjoint, resolve

MAX_DEPTH = 64


class SchemaReader:
    """Turns schemas of one document into nodes, and collects the rules that they need."""

    def __init__(
        self,
        document: object,
        layout: Layout,
        param: str,
        prefix: str = "",
        *,
        is_closed: bool = False,
    ) -> None:
        self.document = document
        self.layout = layout
        self.param = param
        self.prefix = prefix
        self.is_closed = is_closed
        self.rules: dict[str, Node] = any_value_rules(layout, prefix)
        self._targets: dict[str, str] = {}
        self._pending: list[str] = []
        self._count = 0

    def read(self) -> tuple[Node, dict[str, Node]]:
        """All documents that the schema allows, and the rules that this takes."""
        whole = self.value(self.document, "#")
        return whole, self.finish()

    def finish(self) -> dict[str, Node]:
        """All rules, those of references included. References may be met in any order and depth,
        so they are read from a list, not by recursion."""
        while self._pending:
            target = self._pending.pop()
            found = resolve(self.document, target, self.at(target))
            self.rules[self._targets[target]] = self.value(found, target)
        return self.rules

    def value(self, schema: object, path: str, depth: int = 0) -> Node:
        """Every value that the schema allows."""
        if schema is True or schema == {}:
            return Rule(f"{self.prefix}any")
        if schema is False:
            return NOTHING
        if not isinstance(schema, dict):
            raise self.wrong("a schema is an object or a boolean", path)
        if depth > MAX_DEPTH:
            raise self.wrong(f"schemas nest at most {MAX_DEPTH} deep", path)
        held = cast(Schema, schema)
        check_keywords(held, self.at(path), is_root=path == "#")
        if "$ref" in held:
            self.alone(held, "$ref", path)
            return self.reference(held["$ref"], f"{path}.$ref")
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in held:
                return self.combination(held, keyword, path, depth)
        if "const" in held or "enum" in held:
            return self.enumeration(held, path)
        return alt(*(self.typed(held, name, path, depth) for name in types_of(held, self.at(path))))

    def reference(self, target: object, path: str) -> Node:
        """The rule of a `$ref`; `finish` reads what it points to."""
        if not isinstance(target, str):
            raise self.wrong("$ref is a string", path)
        name = self._targets.get(target)
        if name is None:
            name = self._targets[target] = f"{self.prefix}ref{len(self._targets)}"
            resolve(self.document, target, self.at(path))
            self._pending.append(target)
        return Rule(name)

    def combination(self, schema: Schema, keyword: str, path: str, depth: int) -> Node:
        branches = schema[keyword]
        here = f"{path}.{keyword}"
        if not isinstance(branches, list) or not branches:
            raise self.wrong(f"{keyword} is a list of at least one schema", here)
        self.alone(schema, keyword, path, beside=("type",))
        if "type" in schema:
            branches = [self.with_type(schema["type"], b, here) for b in branches]
        if keyword == "allOf" and len(branches) > 1:
            raise self.wrong("allOf of several schemas cannot be enforced; merge them", here)
        if keyword == "oneOf":
            for i, one in enumerate(branches):
                for j in range(i):
                    if not are_disjoint(self.document, one, branches[j], self.at(here)):
                        raise self.wrong(
                            f"oneOf cannot be enforced unless its branches exclude each other by "
                            f"type, const or enum (branches {j} and {i}); use anyOf",
                            here,
                        )
        nodes = (self.value(b, f"{here}[{i}]", depth + 1) for i, b in enumerate(branches))
        return alt(*nodes)

    def with_type(self, declared: object, branch: object, path: str) -> object:
        """The branch with the type that stands beside it."""
        if not isinstance(branch, dict) or "$ref" in branch:
            raise self.wrong("type beside a reference or a boolean cannot be enforced", path)
        if branch.get("type", declared) != declared:
            raise self.wrong("type beside it differs from the branch's own type", path)
        return {**branch, "type": declared}

    def enumeration(self, schema: Schema, path: str) -> Node:
        keyword = "const" if "const" in schema else "enum"
        self.alone(schema, keyword, path, beside=("type",))
        values = [schema["const"]] if keyword == "const" else schema["enum"]
        if not isinstance(values, list) or not values:
            raise self.wrong("enum is a list of at least one value", f"{path}.enum")
        if "type" in schema:
            types = types_of(schema, self.at(path))
            values = [v for v in values if any(is_type(v, name) for name in types)]
        nodes = [constant(v) for v in values]
        return Lexeme(alt(*nodes)) if nodes else NOTHING

    def typed(self, schema: Schema, name: Types, path: str, depth: int) -> Node:
        match name:
            case "null":
                return NULL
            case "boolean":
                return TRUE_FALSE
            case "string":
                return self.string(schema, path)
            case "integer" | "number":
                found = number_node(schema, name, self.at(path))
                return found or (INTEGER if name == "integer" else NUMBER)
            case "array":
                return self.array(schema, path, depth)
            case "object":
                return self.object(schema, path, depth)

    def string(self, schema: Schema, path: str) -> Node:
        content = string_content(schema, self.at(path))
        if content is not None:
            return quoted(content)
        if "minLength" not in schema and "maxLength" not in schema:
            return STRING
        least = count(schema, "minLength", self.at(path)) or 0
        return string_of(least, count(schema, "maxLength", self.at(path)))

    def array(self, schema: Schema, path: str, depth: int) -> Node:
        least = count(schema, "minItems", self.at(path)) or 0
        most = count(schema, "maxItems", self.at(path))
        if schema.get("uniqueItems", False) is not False and (most is None or most > 1):
            raise self.wrong("uniqueItems cannot be enforced", f"{path}.uniqueItems")
        first = schema.get("prefixItems", [])
        if not isinstance(first, list) or isinstance(schema.get("items"), list):
            raise self.wrong("write prefixItems as a list, and items as a schema", path)
        nodes = [self.value(s, f"{path}.prefixItems[{i}]", depth + 1) for i, s in enumerate(first)]
        rest = self.value(schema.get("items", True), f"{path}.items", depth + 1)
        if rest == NOTHING:
            most = len(nodes) if most is None else min(most, len(nodes))
        if not nodes and rest == Rule(f"{self.prefix}any") and (least, most) == (0, None):
            return Rule(f"{self.prefix}any_array")
        return self.rule(array_of(self.layout, self.items(nodes, rest, least, most)))

    def items(self, first: Sequence[Node], rest: Node, least: int, most: int | None) -> Node:
        """Items by position: the tail of an array, from its last position to the first."""
        if most is not None and least > most:
            return NOTHING
        size = len(first) if most is None else min(len(first), most)
        if size == 0:
            return joined(self.layout, rest, least, most)
        more = None if most is None else most - size
        tail = repeat(seq(self.layout.comma, rest), max(least - size, 0), more)
        for i in range(size - 1, 0, -1):
            tail = seq(self.layout.comma, first[i], tail)
            tail = tail if i < least else optional(tail)
        whole = seq(first[0], tail)
        return whole if least else optional(whole)

    def object(self, schema: Schema, path: str, depth: int) -> Node:
        shape = object_shape(schema, self.at(path), is_closed=self.is_closed)
        if shape.is_anything:
            return Rule(f"{self.prefix}any_object")
        values = [
            self.value(sub, f"{path}.properties.{name}", depth + 1)
            for name, sub in shape.properties
        ]
        key = None
        if shape.names is not None:
            key = self.value(shape.names, f"{path}.{shape.names_keyword}", depth + 1)
        extra = self.value(shape.extra, f"{path}.{shape.extra_keyword}", depth + 1)
        return self.rule(object_node(self.layout, shape, values, key, extra, self.rule))

    def rule(self, node: Node) -> Node:
        """A rule of its own for the node."""
        self._count += 1
        name = f"{self.prefix}{self._count}"
        self.rules[name] = node
        return Rule(name)

    def alone(self, schema: Schema, keyword: str, path: str, beside: tuple[str, ...] = ()) -> None:
        """Refuse other assertions beside a keyword that decides alone."""
        for other in schema:
            if other != keyword and other not in beside and is_assertion(other):
                raise self.wrong(f"{other} beside {keyword} cannot be enforced", f"{path}.{other}")

    def at(self, path: str) -> str:
        return f"{self.param}{path.removeprefix('#')}"

    def wrong(self, message: str, path: str) -> Exception:
        return invalid(message, self.at(path))
