"""The items of one answer, from its pieces: what a stream tells of them, and what they are."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych.text.pieces import CallArguments, CallEnd, CallStart, Piece, Section, Text

Event = dict[str, Any]
Entry = dict[str, Any]  # log-probability of a token

_KINDS = {Section.REASONING: "reasoning", Section.CONTENT: "message"}
_EVENTS = {"reasoning": "response.reasoning_text", "message": "response.output_text"}


@dataclass(slots=True)
class _Open:
    """An item under way."""

    item: dict[str, Any]  # what is known of it from the beginning
    texts: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Items:
    """Takes pieces, returns events without their numbers. Items never overlap."""

    def __init__(
        self, namespaces: Mapping[str, tuple[str, str]], *, has_encrypted: bool = False
    ) -> None:
        """`has_encrypted`: items of reasoning have the field that others' servers need."""
        self._namespaces = namespaces
        self._more = {"encrypted_content": ""} if has_encrypted else {}
        self._open: _Open | None = None
        self.items: list[dict[str, Any]] = []
        """Items that are over, but for a call that was cut: nobody shall run it."""

    def take(self, piece: Piece, entries: Sequence[Entry] = ()) -> list[Event]:
        """What the piece adds; `entries` are those of its tokens."""
        match piece:
            case Text(section, text):
                return self._text(_KINDS[section], text, entries)
            case CallStart(_, name):
                return [*self._close(phase="commentary"), self._begin_call(name)]
            case CallArguments(_, text):
                return [self._more_arguments(text)]
            case CallEnd():
                return self._end_call()

    def finish(self, *, cut: bool) -> list[Event]:
        """The answer is over; `cut`: by its length."""
        if self._open is not None and self._open.item["type"] == "function_call":
            call, self._open = self._open, None
            item = {**call.item, "arguments": call.text, "status": "incomplete"}
            return [self._of_item("response.output_item.done", item)]
        return self._close(status="incomplete" if cut else "completed")

    # Text

    def _text(self, kind: str, text: str, entries: Sequence[Entry]) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.item["type"] != kind:
            events = [*self._close(), *self._begin_text(kind)]
        assert self._open is not None
        self._open.texts.append(text)
        self._open.entries += entries
        delta: Event = {"delta": text}
        if kind == "message":
            delta["logprobs"] = list(entries)
        return [*events, self._of_part(f"{_EVENTS[kind]}.delta", delta)]

    def _begin_text(self, kind: str) -> list[Event]:
        if kind == "reasoning":
            item = {"type": kind, "id": _id("rs"), "summary": [], **self._more}
        else:
            item = {"type": kind, "id": _id("msg"), "role": "assistant"}
        self._open = _Open(item)
        begun = {**item, "content": [], "status": "in_progress"}
        part = {"part": _part(kind, "", [])}
        return [
            self._of_item("response.output_item.added", begun),
            self._of_part("response.content_part.added", part),
        ]

    def _close(self, *, status: str = "completed", phase: str = "final_answer") -> list[Event]:
        if self._open is None:
            return []
        kind, text, entries = self._open.item["type"], self._open.text, self._open.entries
        part = _part(kind, text, entries)
        done: dict[str, Any] = {"text": text}
        item = {**self._open.item, "content": [part], "status": status}
        if kind == "message":
            item["phase"] = phase
            done["logprobs"] = entries
        events = [
            self._of_part(f"{_EVENTS[kind]}.done", done),
            self._of_part("response.content_part.done", {"part": part}),
            self._of_item("response.output_item.done", item),
        ]
        self._open = None
        self.items.append(item)
        return events

    # Calls

    def _begin_call(self, name: str) -> Event:
        namespace, local = self._namespaces.get(name, ("", name))
        item = {"type": "function_call", "id": _id("fc"), "call_id": _id("call"), "name": local}
        if namespace:
            item["namespace"] = namespace
        self._open = _Open(item)
        begun = {**item, "arguments": "", "status": "in_progress"}
        return self._of_item("response.output_item.added", begun)

    def _more_arguments(self, text: str) -> Event:
        assert self._open is not None
        self._open.texts.append(text)
        return self._of_open("response.function_call_arguments.delta", {"delta": text})

    def _end_call(self) -> list[Event]:
        assert self._open is not None
        arguments = {"arguments": self._open.text}
        item = {**self._open.item, **arguments, "status": "completed"}
        events = [
            self._of_open("response.function_call_arguments.done", arguments),
            self._of_item("response.output_item.done", item),
        ]
        self._open = None
        self.items.append(item)
        return events

    # Events

    def _of_item(self, kind: str, item: dict[str, Any]) -> Event:
        return {"type": kind, "output_index": len(self.items), "item": item}

    def _of_open(self, kind: str, fields: dict[str, Any]) -> Event:
        assert self._open is not None
        index, name = len(self.items), self._open.item["id"]
        return {"type": kind, "output_index": index, "item_id": name, **fields}

    def _of_part(self, kind: str, fields: dict[str, Any]) -> Event:
        return self._of_open(kind, {"content_index": 0, **fields})


def _part(kind: str, text: str, entries: list[Entry]) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": entries}


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
