"""`POST /tokenize`, `/detokenize` and `/v1/chat/completions/render`: the ids that generation uses.

Whatever is long happens in a thread, and with a tokenizer that nobody configures while others use
it: so nothing is borrowed twice.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from diptych.gateway.aside import aside
from diptych.gateway.chat.constraint import constraint_of
from diptych.gateway.chat.preparation import chat_of
from diptych.gateway.chat.request import read_chat
from diptych.gateway.images import measure
from diptych.gateway.limits import length_of, refuse_hopeless
from diptych.gateway.logprobs import readable
from diptych.gateway.served import INLINE_CHARS, Served
from diptych.gateway.tenancy.keys import Scope
from diptych.gateway.tenancy.visit import Visit
from diptych.gateway.tokens.request import (
    ChatToTokens,
    TextToTokens,
    TokensToText,
    chat_body,
    read_body,
    read_tokenize,
    too_many,
)
from diptych.gateway.vocabulary import check_ids, spell
from diptych.text.chat import Chat, render
from diptych.text.completion import raw
from diptych.text.image import Image
from diptych.text.markers import Segment
from diptych.text.markers import spell as spell_segments

MAX_CONTEXT = 1 << 20  # where no worker was heard of that knows better
_LONG = INLINE_CHARS + 1  # a conversation's length is known when it has been rendered


class Converter:
    """Knows nothing that the tokenizer and the chat template do not know."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def tokenize(self, body: dict[str, Any], visit: Visit) -> dict[str, Any]:
        """Ids of a raw prompt, or of a conversation."""
        request = await aside(lambda: read_tokenize(body), visit.size_bytes)
        if isinstance(request, TextToTokens):
            self._choose(request.model, visit)
            ids = await self._ids_of_text(request)
        else:
            ids = await self._ids_of_chat(request, body, visit)
        strings: list[str] | None = None
        if request.return_token_strs:
            strings = await self._served.unhurried(lambda: self._spelled(ids), len(ids))
        return {
            "count": len(ids),
            "max_model_len": self._served.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }

    async def detokenize(self, body: dict[str, Any], visit: Visit) -> dict[str, Any]:
        """The text of ids, special tokens as they are written."""
        request = await aside(lambda: read_body(TokensToText, body), visit.size_bytes)
        self._choose(request.model, visit)
        ids, tokenizer = request.tokens, self._served.tokenizer
        if len(ids) > MAX_CONTEXT:
            raise too_many("tokens", MAX_CONTEXT)
        await aside(lambda: check_ids(ids, tokenizer.vocab_size, "tokens"), visit.size_bytes)
        return {"prompt": await self._served.unhurried(lambda: spell(ids, tokenizer), len(ids))}

    async def render(self, body: dict[str, Any], visit: Visit) -> dict[str, Any]:
        """The prompt of a chat request, as text and as ids; for those who debug."""
        visit.permit(Scope.DEBUG)
        chat = await self._chat(body, visit)

        def work() -> tuple[list[Segment], tuple[int, ...]]:
            segments = render(chat)
            return segments, self._encode(segments)

        segments, ids = await self._served.unhurried(work, _LONG)
        parts = [_part(segment) for segment in segments]
        return {
            "prompt": "".join(part["text"] for part in parts),
            "token_ids": ids,
            "segments": parts,
        }

    async def _ids_of_text(self, request: TextToTokens) -> tuple[int, ...]:
        def work() -> tuple[int, ...]:
            return self._encode(
                raw(
                    request.prompt,
                    self._served.tokenizer,
                    bos=request.add_special_tokens,
                    special=self._served.policy.allow_raw_special,
                )
            )

        with length_of("prompt"):
            return await self._served.unhurried(work, len(request.prompt))

    async def _ids_of_chat(
        self, request: ChatToTokens, body: dict[str, Any], visit: Visit
    ) -> tuple[int, ...]:
        chat = await self._chat(chat_body(body, self._served.model_name), visit)
        chat = replace(chat, has_header=request.has_header)
        return await self._served.unhurried(lambda: self._encode(render(chat)), _LONG)

    async def _chat(self, body: dict[str, Any], visit: Visit) -> Chat:
        policy = self._served.policy
        request, _ = await aside(lambda: read_chat(body, policy), visit.size_bytes)
        self._choose(request.model, visit)
        constraint_of(request)  # refuses what a prompt could not state

        def work() -> Chat:
            return chat_of(request, measure(request.image_sources))

        return await aside(work, visit.size_bytes)

    def _choose(self, model: str | None, visit: Visit) -> None:
        name = self._served.model_name if model is None else model
        visit.choose(self._served.check_model(name))

    def _encode(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """In a thread; what no context holds is refused before it is tokenised."""
        tokenizer = self._served.tokenizer
        num_bytes = sum(len(each.encode()) for each in segments if isinstance(each, str))
        context = self._served.max_model_len or MAX_CONTEXT
        refuse_hopeless(num_bytes, tokenizer.longest_token_bytes, None, context)
        return tokenizer.encode(segments)

    def _spelled(self, ids: Sequence[int]) -> list[str]:
        return [readable(self._served.tokenizer.spelling(each)) for each in ids]


def _part(segment: Segment) -> dict[str, str]:
    kind = "text" if isinstance(segment, str) else "special"
    if isinstance(segment, Image):
        kind = "image"
    return {"type": kind, "text": spell_segments([segment])}
