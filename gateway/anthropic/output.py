"""The blocks of one answer, from its pieces: what a stream tells of them, and what they are."""

import secrets
from dataclasses import dataclass, field
from typing import Any

import orjson

from diptych.text.pieces import CallArguments, CallEnd, CallStart, Piece, Section, Text

Event = dict[str, Any]

_KINDS = {Section.REASONING: "thinking", Section.CONTENT: "text"}


@dataclass(slots=True)
class _Open:
    """A block under way."""

    start: dict[str, Any]  # as a stream shows it before anything is known
    texts: list[str] = field(default_factory=list)
    is_complete: bool = False  # of a call

    @property
    def kind(self) -> str:
        return str(self.start["type"])


class Blocks:
    """Takes pieces, returns events. Blocks never overlap."""

    def __init__(self, signature: str) -> None:
        """`signature` is what a block of thinking ends with; clients send it back unread."""
        self._signature = signature
        self._open: _Open | None = None
        self.content: list[dict[str, Any]] = []
        """Blocks that are over."""

    def take(self, piece: Piece) -> list[Event]:
        """What the piece adds."""
        match piece:
            case Text(section, text):
                return self._text(_KINDS[section], text)
            case CallStart(_, name):
                call = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": name}
                return [*self._close(), self._begin({**call, "input": {}})]
            case CallArguments(_, text):
                return [self._delta(text)]
            case CallEnd():
                if self._open is not None:
                    self._open.is_complete = True
                return self._close()

    def finish(self) -> list[Event]:
        """The answer is over."""
        return self._close()

    def _text(self, kind: str, text: str) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.kind != kind:
            start = {"type": kind, kind: ""}
            if kind == "thinking":
                start["signature"] = ""
            events = [*self._close(), self._begin(start)]
        return [*events, self._delta(text)]

    def _begin(self, start: dict[str, Any]) -> Event:
        self._open = _Open(start)
        return {"type": "content_block_start", "index": len(self.content), "content_block": start}

    def _delta(self, text: str) -> Event:
        assert self._open is not None
        self._open.texts.append(text)
        match self._open.kind:
            case "thinking":
                return self._change({"type": "thinking_delta", "thinking": text})
            case "text":
                return self._change({"type": "text_delta", "text": text})
        return self._change({"type": "input_json_delta", "partial_json": text})

    def _change(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.content), "delta": delta}

    def _close(self) -> list[Event]:
        if self._open is None:
            return []
        events = []
        if self._open.kind == "thinking":
            events.append(self._change({"type": "signature_delta", "signature": self._signature}))
        events.append({"type": "content_block_stop", "index": len(self.content)})
        self.content.append(self._whole(self._open))
        self._open = None
        return events

    def _whole(self, block: _Open) -> dict[str, Any]:
        text = "".join(block.texts)
        match block.kind:
            case "thinking":
                return {"type": "thinking", "thinking": text, "signature": self._signature}
            case "text":
                return {"type": "text", "text": text}
        # Digit by digit as the model wrote it. A call that was cut is nothing to be run: the
        # message's stop_reason says so, and clients want an object.
        is_whole = block.is_complete and _is_object(text)
        return {**block.start, "input": orjson.Fragment(text if is_whole else "{}")}


def _is_object(text: str) -> bool:
    """Values that a grammar wrote, or that are very long, were passed on unread."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False
