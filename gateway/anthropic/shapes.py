"""What an answer looks like as a message of Anthropic's, streamed and whole."""

import secrets
from collections.abc import Sequence
from typing import Any

import orjson

from diptych.core.errors import DiptychError
from diptych.core.step import Logprob
from diptych.gateway.answer import Answer
from diptych.gateway.anthropic.output import Blocks, Event
from diptych.gateway.errors import anthropic_envelope
from diptych.gateway.sse import event
from diptych.text.pieces import Piece

PING: Event = {"type": "ping"}


class MessageShapes:
    """Keeps the state of one stream. It begins with the first piece: then usage is known."""

    def __init__(self, model: str, prompt_tokens: int, context: int) -> None:
        """`context`: tokens that prompt and answer have together."""
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._context = context
        self._id = f"msg_{secrets.token_hex(16)}"
        self._blocks = Blocks(self._id)
        self._has_begun = False
        self._has_pinged = False

    @property
    def keep_alive(self) -> bytes:
        return _bytes(PING)

    def no_op(self) -> bytes:
        """Another ping: they are events already."""
        return self.keep_alive

    def opening(self, answer: Answer, prompt_logprobs: Sequence[Logprob] = ()) -> bytes:
        """Nothing yet."""
        return b""

    def piece(self, answer: Answer, piece: Piece) -> bytes:
        """More of a block, and the beginning of the message before the first."""
        events = [*self._start(answer), *self._blocks.take(piece)]
        if not self._has_pinged:
            self._has_pinged = True
            events.insert(2, PING)  # behind the start of the first block
        return _bytes(*events)

    def closing(self, answer: Answer) -> bytes:
        """Why it ended, and all that it cost."""
        events = [*self._start(answer), *self._blocks.finish()]
        delta = {"type": "message_delta", "delta": self._stop(answer), "usage": self._usage(answer)}
        return _bytes(*events, delta)

    def ending(self, answers: Sequence[Answer]) -> bytes:
        return _bytes({"type": "message_stop"})

    def failing(self, error: DiptychError, request_id: str) -> bytes:
        """Clients raise what they read here."""
        return _bytes(anthropic_envelope(error, request_id))

    def whole(self, answers: Sequence[Answer], texts: Sequence[Sequence[Piece]]) -> bytes:
        """The message in one piece: the blocks that a stream would have told."""
        (answer,), (pieces,) = answers, texts
        for piece in pieces:
            self._blocks.take(piece)
        self._blocks.finish()
        return orjson.dumps(self._message(answer) | self._stop(answer))

    def _start(self, answer: Answer) -> list[Event]:
        if self._has_begun:
            return []
        self._has_begun = True
        usage = self._usage(answer) | {"output_tokens": 0}
        return [{"type": "message_start", "message": self._message(answer) | {"usage": usage}}]

    def _message(self, answer: Answer) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": list(self._blocks.content),
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(answer),
        }

    def _usage(self, answer: Answer) -> dict[str, Any]:
        hits = min(answer.cached_tokens, self._prompt_tokens)
        return {
            "input_tokens": self._prompt_tokens - hits,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": hits,
            "output_tokens": len(answer.token_ids),
        }

    def _stop(self, answer: Answer) -> dict[str, Any]:
        reason, sequence = "end_turn", None
        if answer.finish_reason == "tool_calls":
            reason = "tool_use"
        elif answer.finish_reason == "length":
            is_full = self._prompt_tokens + len(answer.token_ids) >= self._context
            reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif isinstance(answer.stop_reason, str):
            reason, sequence = "stop_sequence", answer.stop_reason
        return {"stop_reason": reason, "stop_sequence": sequence}


def _bytes(*events: Event) -> bytes:
    return b"".join(event(each, each["type"]) for each in events)
