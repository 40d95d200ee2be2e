"""Is a grammar fit for a backend: defined, of bounded size, without left recursion, not empty."""

from collections.abc import Callable, Iterator, Mapping

from diptych.text.constraints.grammar import (
    NOTHING,
    Alt,
    Chars,
    Grammar,
    Lexeme,
    Node,
    OtherKey,
    Repeat,
    Rule,
    Seq,
    Text,
    alt,
    children,
    invalid,
    repeat,
    seq,
)

MAX_SIZE = 400_000
_MAX_NODE_DEPTH = 400


def sound(rules: Mapping[str, Node], param: str) -> Grammar:
    """The grammar without what can never match, or the reason why it cannot be enforced."""
    order = _postorder(rules, param)
    seen: set[int] = set()
    total = sum(_size(rules[name], seen, param) for name in order)
    if total > MAX_SIZE:
        raise invalid("the constraint is too large", param)
    alive = _alive(rules, order)
    if "root" not in alive:
        raise invalid("no text at all satisfies the constraint", param)
    kept = dict(rules)
    if len(alive) < len(order) or any(_has_nothing(rules[name]) for name in order):
        kept = {name: _prune(rules[name], alive) for name in order if name in alive}
        order = _postorder(kept, param)
    _refuse_left_recursion(kept, order, param)
    return Grammar({name: kept[name] for name in reversed(order)})


def _has_nothing(node: Node) -> bool:
    stack = [node]
    while stack:
        top = stack.pop()
        if top == NOTHING:
            return True
        if not isinstance(top, Lexeme):
            stack += children(top)
    return False


def rules_in(node: Node) -> Iterator[str]:
    """Names of the rules that a node refers to."""
    stack = [node]
    while stack:
        top = stack.pop()
        if isinstance(top, Rule):
            yield top.name
        if not isinstance(top, Lexeme):  # a lexeme is regular: no rules inside
            stack += children(top)


def _postorder(rules: Mapping[str, Node], param: str) -> list[str]:
    """The rules that root needs, each after those it refers to (cycles aside)."""
    done: dict[str, None] = {}
    seen = {"root"}
    stack: list[tuple[str, Iterator[str]]] = [("root", rules_in(rules["root"]))]
    while stack:
        name, inner = stack[-1]
        following = next(inner, None)
        if following is None:
            done[name] = None
            stack.pop()
        elif following not in rules:
            raise invalid(f"rule {following.rpartition('.')[2]} is not defined", param)
        elif following not in seen:
            seen.add(following)
            stack.append((following, rules_in(rules[following])))
    return list(done)


def _size(node: Node, seen: set[int], param: str, depth: int = 0) -> int:
    """States that a backend may need. Counted repetitions of one class are counters, not copies;
    a lexeme that is used again is compiled once."""
    if depth > _MAX_NODE_DEPTH:
        raise invalid("the constraint is nested too deep", param)
    match node:
        case Text(value):
            return len(value)
        case Chars(ranges):
            return 1 + len(ranges) // 8
        case OtherKey(words, stems):
            return sum(map(len, words + stems))
        case Lexeme() if id(node) in seen:
            return 1
        case Lexeme():
            seen.add(id(node))
    size = 1 + sum(_size(c, seen, param, depth + 1) for c in children(node))
    if isinstance(node, Repeat) and not isinstance(node.item, Chars):
        size *= max(node.least, node.most or 1, 1)
    if size > MAX_SIZE:
        raise invalid("repetitions multiply to more than we compile", param)
    return size


def _alive(rules: Mapping[str, Node], order: list[str]) -> set[str]:
    """Rules that match some text."""
    return _least_fixpoint(rules, order, _matches_something)


def _matches_something(node: Node, alive: set[str]) -> bool:
    match node:
        case Rule(name):
            return name in alive
        case Seq(parts):
            return all(_matches_something(p, alive) for p in parts)
        case Alt(options):
            return any(_matches_something(o, alive) for o in options)
        case Repeat(item, least, _):
            return least == 0 or _matches_something(item, alive)
    return True


def _prune(node: Node, alive: set[str]) -> Node:
    """The node without options that cannot match."""
    match node:
        case Rule(name):
            return node if name in alive else NOTHING
        case Seq(parts):
            kept = [_prune(p, alive) for p in parts]
            return NOTHING if NOTHING in kept else seq(*kept)
        case Alt(options):
            return alt(*(k for o in options if (k := _prune(o, alive)) != NOTHING))
        case Repeat(item, least, most):
            pruned = _prune(item, alive)
            return repeat(pruned, least, 0 if pruned == NOTHING else most)
    return node


def _nullable(node: Node, known: set[str]) -> bool:
    match node:
        case Rule(name):
            return name in known
        case Text(value):
            return value == ""
        case Seq(parts):
            return all(_nullable(p, known) for p in parts)
        case Alt(options):
            return any(_nullable(o, known) for o in options)
        case Repeat(item, least, _):
            return least == 0 or _nullable(item, known)
        case Lexeme(item):
            return _nullable(item, known)
    return False


def _least_fixpoint(
    rules: Mapping[str, Node], order: list[str], holds: Callable[[Node, set[str]], bool]
) -> set[str]:
    """Names of the rules for which it holds, given the names for which it is known to hold."""
    found: set[str] = set()
    grew = True
    while grew:  # postorder: one pass and a check, but for cycles
        grew = False
        for name in order:
            if name not in found and holds(rules[name], found):
                found.add(name)
                grew = True
    return found


def _refuse_left_recursion(rules: Mapping[str, Node], order: list[str], param: str) -> None:
    """A rule that can start with itself consumes nothing on the way: a pure cycle."""
    nullable = _least_fixpoint(rules, order, _nullable)
    starts = {name: set(_first_rules(rules[name], nullable)) for name in order}
    done: set[str] = set()
    for root in order:
        path: dict[str, Iterator[str]] = {}
        stack = [root] if root not in done else []
        while stack:
            name = stack[-1]
            inner = path.setdefault(name, iter(starts[name]))
            following = next(inner, None)
            if following is None:
                done.add(name)
                path.pop(name)
                stack.pop()
            elif following in path:
                raise invalid("a rule or reference leads back to itself without any text", param)
            elif following not in done:
                stack.append(following)


def _first_rules(node: Node, nullable: set[str]) -> Iterator[str]:
    """Rules that may be entered before any character was read."""
    match node:
        case Rule(name):
            yield name
        case Seq(parts):
            for part in parts:
                yield from _first_rules(part, nullable)
                if not _nullable(part, nullable):
                    break
        case Alt() | Repeat():
            for child in children(node):
                yield from _first_rules(child, nullable)
