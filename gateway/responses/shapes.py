"""What an answer looks like as a response, streamed and whole."""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from diptych.core.errors import DiptychError
from diptych.core.step import Logprob
from diptych.gateway.answer import Answer
from diptych.gateway.errors import code_of, message_of
from diptych.gateway.logprobs import Logprobs
from diptych.gateway.responses.output import Entry, Event, Items
from diptych.gateway.sse import KEEP_ALIVE, event
from diptych.text.pieces import Piece, Section


class ResponseShapes:
    """Keeps the state of one stream: the items so far, and the number of its next event."""

    def __init__(
        self,
        echo: Mapping[str, Any],
        items: Items,
        prompt_tokens: int,
        logprobs: Logprobs | None = None,
    ) -> None:
        """`echo`: fields of the request that the response repeats."""
        self._echo = echo
        self._items = items
        self._prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self._id = f"resp_{secrets.token_hex(16)}"
        self._created = int(time.time())
        self._number = 0

    @property
    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def no_op(self) -> bytes:
        """Says again that it is in progress, or for the first time."""
        if not self._number:
            return self._begin()
        return self._bytes(self._progress("response.in_progress"))

    def opening(self, answer: Answer, prompt_logprobs: Sequence[Logprob] = ()) -> bytes:
        return self._begin()

    def piece(self, answer: Answer, piece: Piece) -> bytes:
        """More of an item."""
        return self._bytes(*self._items.take(piece, self._entries(answer, piece)))

    def closing(self, answer: Answer) -> bytes:
        """The end of the last item."""
        return self._bytes(*self._items.finish(cut=answer.finish_reason == "length"))

    def ending(self, answers: Sequence[Answer]) -> bytes:
        """The whole response once more. There is no [DONE]."""
        (answer,) = answers
        response = self._response(answer)
        return self._bytes({"type": f"response.{response['status']}", "response": response})

    def failing(self, error: DiptychError, request_id: str) -> bytes:
        """An event of the error, and the response that came to nothing."""
        said = {"code": code_of(error), "message": f"{message_of(error)} ({request_id})"}
        response = self._head("failed") | {"error": said}
        begin = self._begin()
        return begin + self._bytes(
            {"type": "error", **said, "param": error.param},
            {"type": "response.failed", "response": response},
        )

    def whole(self, answers: Sequence[Answer], texts: Sequence[Sequence[Piece]]) -> bytes:
        """The response in one piece: the items that a stream would have told."""
        (answer,), (pieces,) = answers, texts
        for piece in pieces:
            self._items.take(piece, self._entries(answer, piece))
        self._items.finish(cut=answer.finish_reason == "length")
        return orjson.dumps(self._response(answer))

    def _begin(self) -> bytes:
        if self._number:
            return b""
        return self._bytes(
            self._progress("response.created"), self._progress("response.in_progress")
        )

    def _progress(self, kind: str) -> Event:
        return {"type": kind, "response": self._head("in_progress")}

    def _entries(self, answer: Answer, piece: Piece) -> list[Entry]:
        if self._logprobs is None:
            return []
        return self._logprobs.entries(answer, [piece])[Section.CONTENT]

    def _head(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": list(self._items.items),
            "usage": None,
            **self._echo,
        }

    def _response(self, answer: Answer) -> dict[str, Any]:
        usage = self._usage(answer)
        if answer.finish_reason == "length":
            reason = {"reason": "max_output_tokens"}
            return self._head("incomplete") | {"incomplete_details": reason, "usage": usage}
        return self._head("completed") | {"completed_at": int(time.time()), "usage": usage}

    def _usage(self, answer: Answer) -> dict[str, Any]:
        return {
            "input_tokens": self._prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": min(answer.cached_tokens, self._prompt_tokens),
                "cache_write_tokens": 0,
            },
            "output_tokens": len(answer.token_ids),
            "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
            "total_tokens": self._prompt_tokens + len(answer.token_ids),
        }

    def _bytes(self, *events: Event) -> bytes:
        data = b""
        for each in events:
            data += event({**each, "sequence_number": self._number}, each["type"])
            self._number += 1
        return data
