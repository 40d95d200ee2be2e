"""What completed text looks like on the wire, streamed and whole: in both the same object."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from diptych.core.errors import DiptychError
from diptych.core.step import Logprob
from diptych.gateway.answer import Answer
from diptych.gateway.completions.logprobs import ChoiceLogprobs, Entries
from diptych.gateway.completions.preparation import Prompt
from diptych.gateway.errors import envelope
from diptych.gateway.logprobs import PromptLogprobs
from diptych.gateway.sse import DONE, KEEP_ALIVE, event
from diptych.gateway.usage import usage
from diptych.gateway.vocabulary import spell
from diptych.text.pieces import Piece, Text
from diptych.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class CompletionShapes:
    """Fields that are the same in every chunk of an answer, and what the client asked to see."""

    tokenizer: Tokenizer
    model: str
    fingerprint: str
    prompts: tuple[Prompt, ...]
    choices_per_prompt: int
    has_echo: bool = False
    has_special: bool = False  # special tokens are shown
    has_usage: bool = False
    closes_with_usage: bool = False  # DeepSeek's way: in the last choice's last chunk
    has_running_usage: bool = False
    has_token_ids: bool = False
    num_top: int | None = None  # None: no log-probabilities
    num_prompt_top: int | None = None  # likewise, of the prompt by itself
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(16)}")
    created: int = field(default_factory=lambda: int(time.time()))
    _tellings: dict[int, "_Telling"] = field(default_factory=dict)
    _closed: list[Answer] = field(default_factory=list)

    @property
    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def no_op(self) -> bytes:
        """A chunk that says nothing, for clients that count events only."""
        return event(self._head() | {"choices": [_choice(0, "")]})

    def opening(self, answer: Answer, prompt_logprobs: Sequence[Logprob] = ()) -> bytes:
        """The prompt, if it is to be told; else nothing."""
        if not self.has_echo and self.num_prompt_top is None:
            return b""
        text, entries = self._echo(answer, prompt_logprobs)
        more = self._prompt_logprobs(answer, prompt_logprobs)
        return self._chunk(answer, _choice(answer.index, text, entries.shape()) | more)

    def piece(self, answer: Answer, piece: Piece) -> bytes:
        """A chunk of text."""
        assert isinstance(piece, Text)  # plain text has no calls
        telling = self._telling(answer)
        telling.num_chars += len(piece.text)
        entries = telling.entries(answer, piece.tokens[-1] + 1 if piece.tokens else 0)
        return self._chunk(answer, _choice(answer.index, piece.text, entries.shape()))

    def closing(self, answer: Answer) -> bytes:
        """Last chunk of a choice, with the tokens that had no text."""
        entries = self._telling(answer).entries(answer, len(answer.token_ids))
        end = {"finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}
        self._closed.append(answer)
        is_end = self.closes_with_usage and len(self._closed) == self._num_choices
        more = {"usage": self.usage(self._closed)} if is_end else {}
        return self._chunk(answer, _choice(answer.index, "", entries.shape()) | end, more)

    def ending(self, answers: Sequence[Answer]) -> bytes:
        """The usage, if asked for, and the end of the stream."""
        if not self.has_usage or self.closes_with_usage:
            return DONE
        return event(self._head() | {"choices": [], "usage": self.usage(answers)}) + DONE

    def failing(self, error: DiptychError, request_id: str) -> bytes:
        """Clients raise what they read here; there is no end of the stream after it."""
        return event(envelope(error, request_id))

    def whole(self, answers: Sequence[Answer], texts: Sequence[Sequence[Piece]]) -> bytes:
        """The answer in one piece."""
        choices = []
        for answer, pieces in zip(answers, texts, strict=True):
            echo, entries = self._echo(answer, answer.prompt_logprobs)
            text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
            telling = self._telling(answer)
            telling.num_chars += len(text)
            entries.extend(telling.entries(answer, len(answer.token_ids)))
            choice = _choice(answer.index, echo + text, entries.shape()) | {
                "finish_reason": answer.finish_reason,
                "stop_reason": answer.stop_reason,
                **self._prompt_logprobs(answer, answer.prompt_logprobs),
            }
            if self.has_token_ids:
                choice["token_ids"] = answer.token_ids
            choices.append(choice)
        return orjson.dumps(self._head() | {"choices": choices, "usage": self.usage(answers)})

    def usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Tokens so far; each prompt counts once, by the first of its choices."""
        in_order = sorted(answers, key=lambda answer: answer.index, reverse=True)
        prompts = {answer.index // self.choices_per_prompt: answer for answer in in_order}
        lengths = {number: len(self.prompts[number].token_ids) for number in prompts}
        return usage(
            sum(lengths.values()),
            sum(min(answer.cached_tokens, lengths[n]) for n, answer in prompts.items()),
            sum(len(answer.token_ids) for answer in answers),
            memory=sum(answer.cached_memory for answer in prompts.values()),
            disk=sum(answer.cached_disk for answer in prompts.values()),
        )

    @property
    def _num_choices(self) -> int:
        return len(self.prompts) * self.choices_per_prompt

    def _prompt(self, answer: Answer) -> Prompt:
        return self.prompts[answer.index // self.choices_per_prompt]

    def _telling(self, answer: Answer) -> "_Telling":
        if answer.index not in self._tellings:
            logprobs: ChoiceLogprobs | None = None
            if self.num_top is not None:
                logprobs = ChoiceLogprobs(self.tokenizer, self.num_top, special=self.has_special)
            self._tellings[answer.index] = _Telling(logprobs)
        return self._tellings[answer.index]

    def _echo(self, answer: Answer, found: Sequence[Logprob]) -> tuple[str, Entries]:
        """The prompt as the client wrote it."""
        telling = self._telling(answer)
        if not self.has_echo:
            return "", Entries()
        ids = self._prompt(answer).echoed
        text = spell(ids, self.tokenizer)
        telling.num_chars += len(text)
        if telling.logprobs is None:
            return text, Entries()
        return text, telling.logprobs.of_prompt(ids, found)

    def _prompt_logprobs(self, answer: Answer, found: Sequence[Logprob]) -> dict[str, Any]:
        if self.num_prompt_top is None:
            return {}
        fewer = [replace(each, top=each.top[: self.num_prompt_top]) for each in found]
        spelled = PromptLogprobs(self.tokenizer, self._prompt(answer).token_ids).shape(fewer)
        return {"prompt_logprobs": spelled}

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _chunk(
        self, answer: Answer, choice: Mapping[str, Any], more: Mapping[str, Any] | None = None
    ) -> bytes:
        if self.has_token_ids:
            choice = {**choice, "token_ids": answer.take_ids()}
        chunk = self._head() | {"choices": [choice]}
        if self.has_running_usage:
            chunk["usage"] = self.usage([answer])
        elif self.has_usage or self.closes_with_usage:
            chunk["usage"] = None
        return event(chunk | dict(more or {}))


@dataclass(slots=True)
class _Telling:
    """How far one choice has been told."""

    logprobs: ChoiceLogprobs | None
    num_chars: int = 0

    def entries(self, answer: Answer, end: int) -> Entries:
        """Of tokens that were not told yet, up to `end`."""
        if self.logprobs is None:
            return Entries()
        return self.logprobs.of_output(answer, end, self.num_chars)


def _choice(index: int, text: str, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}
