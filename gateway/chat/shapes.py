"""What a chat answer looks like on the wire, streamed and whole."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from diptych.core.errors import DiptychError
from diptych.core.step import Logprob
from diptych.gateway.answer import Answer
from diptych.gateway.chat import calls
from diptych.gateway.errors import envelope
from diptych.gateway.logprobs import Logprobs, PromptLogprobs, shape
from diptych.gateway.policy import ReasoningField
from diptych.gateway.sse import DONE, KEEP_ALIVE, event
from diptych.gateway.usage import usage
from diptych.text.pieces import Piece, Section, Text


@dataclass(frozen=True, slots=True)
class ChatShapes:
    """Fields that are the same in every chunk of an answer, and what the client asked to see."""

    model: str
    fingerprint: str
    prompt_tokens: int
    has_reasoning: bool  # thinking, and shown by itself
    reasoning_field: ReasoningField = "reasoning_content"
    num_choices: int = 1
    has_usage: bool = False
    closes_with_usage: bool = False  # DeepSeek's way: in the last choice's last chunk
    has_running_usage: bool = False
    has_token_ids: bool = False
    logprobs: Logprobs | None = None  # if asked for
    prompt_logprobs: PromptLogprobs | None = None  # likewise
    timings: Callable[[], dict[str, Any] | None] | None = None  # likewise; None: not all is over
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(16)}")
    created: int = field(default_factory=lambda: int(time.time()))
    _closed: list[Answer] = field(default_factory=list)

    @property
    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def opening(self, answer: Answer, prompt_logprobs: Sequence[Logprob] = ()) -> bytes:
        """First chunk of a choice; that of the first one tells of the prompt."""
        delta: dict[str, Any] = {"role": "assistant", "content": ""}
        if self.has_reasoning:
            delta = {"role": "assistant", "content": None, **self._reasoning("")}
        more = self._prompt_logprobs(prompt_logprobs) if answer.index == 0 else {}
        return self._chunk(answer, delta, more=more)

    def piece(self, answer: Answer, piece: Piece) -> bytes:
        """A chunk of text or of a call; empty for reasoning that is not shown."""
        if not isinstance(piece, Text):
            fragment = calls.fragment(piece)
            return self._chunk(answer, {"tool_calls": [fragment]}) if fragment else b""
        if piece.section is Section.REASONING:
            if not self.has_reasoning:
                return b""
            delta = self._reasoning(piece.text)
        else:
            delta = {"content": piece.text}
        return self._chunk(answer, delta, logprobs=self._logprobs(answer, [piece]))

    def no_op(self) -> bytes:
        """A chunk that says nothing, for clients that count events only."""
        choice = {"index": 0, "delta": {}, "finish_reason": None}
        return event(self._head() | {"choices": [choice]})

    def closing(self, answer: Answer) -> bytes:
        """Last chunk of a choice."""
        self._closed.append(answer)
        more = {} if self.has_usage and not self.closes_with_usage else self._timings()
        if self.closes_with_usage and len(self._closed) == self.num_choices:
            more |= {"usage": self.usage(self._closed)}
        return self._chunk(answer, {}, more=more, is_last=True)

    def ending(self, answers: Sequence[Answer]) -> bytes:
        """The usage, if asked for, and the end of the stream."""
        if not self.has_usage or self.closes_with_usage:
            return DONE
        usage = {"choices": [], "usage": self.usage(answers)}
        return event(self._head() | usage | self._timings()) + DONE

    def failing(self, error: DiptychError, request_id: str) -> bytes:
        """Clients raise what they read here; there is no end of the stream after it."""
        return event(envelope(error, request_id))

    def whole(self, answers: Sequence[Answer], texts: Sequence[Sequence[Piece]]) -> bytes:
        """The answer in one piece."""
        choices = []
        for answer, pieces in zip(answers, texts, strict=True):
            message: dict[str, Any] = {
                "role": "assistant",
                "content": _text(pieces, Section.CONTENT),
            }
            if self.has_reasoning:
                message |= self._reasoning(_text(pieces, Section.REASONING))
            if made := calls.whole(pieces):
                message["tool_calls"] = made
            choice = {
                "index": answer.index,
                "message": message,
                "logprobs": self._logprobs(answer, pieces),
                "finish_reason": answer.finish_reason,
                "stop_reason": answer.stop_reason,
            }
            if self.has_token_ids:
                choice["token_ids"] = answer.token_ids
            choices.append(choice)
        head = self._head() | {"object": "chat.completion", "choices": choices}
        head |= self._prompt_logprobs(answers[0].prompt_logprobs)
        return orjson.dumps(head | {"usage": self.usage(answers)} | self._timings())

    def usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Tokens so far; the prompt counts once."""
        return usage(
            self.prompt_tokens,
            answers[0].cached_tokens,
            sum(len(answer.token_ids) for answer in answers),
            sum(answer.reasoning_tokens for answer in answers),
            memory=answers[0].cached_memory,
            disk=answers[0].cached_disk,
        )

    def _reasoning(self, text: str) -> dict[str, Any]:
        """Under the name that clients of this server look for."""
        if self.reasoning_field == "both":
            return {"reasoning_content": text, "reasoning": text}
        return {self.reasoning_field: text}

    def _logprobs(self, answer: Answer, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        entries = self.logprobs.entries(answer, pieces)
        return shape(entries, has_reasoning=self.has_reasoning)

    def _prompt_logprobs(self, found: Sequence[Logprob]) -> dict[str, Any]:
        if self.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": self.prompt_logprobs.shape(found)}

    def _timings(self) -> dict[str, Any]:
        timings = self.timings() if self.timings else None
        return {} if timings is None else {"timings": timings}

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _chunk(
        self,
        answer: Answer,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
        is_last: bool = False,
    ) -> bytes:
        choice = {
            "index": answer.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": answer.finish_reason if is_last else None,
        }
        if is_last:
            choice["stop_reason"] = answer.stop_reason
        if self.has_token_ids:
            choice["token_ids"] = answer.take_ids()
        chunk = self._head() | {"choices": [choice]}
        if self.has_running_usage:
            chunk["usage"] = self.usage([answer])
        elif self.has_usage or self.closes_with_usage:
            chunk["usage"] = None
        return event(chunk | dict(more or {}))


def _text(pieces: Sequence[Piece], section: Section) -> str:
    texts = (piece for piece in pieces if isinstance(piece, Text))
    return "".join(piece.text for piece in texts if piece.section is section)
