"""A request of another API, said as the chat request that it means, and its errors said back."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from diptych.core.errors import BadRequest
from diptych.gateway.aside import aside
from diptych.gateway.chat.preparation import Prepared, prepare
from diptych.gateway.chat.request import ChatRequest, read_chat
from diptych.gateway.pipeline import Call
from diptych.gateway.policy import Policy
from diptych.gateway.served import Served
from diptych.gateway.tenancy.visit import Visit

# Fields of chat requests that the other APIs lack, and take all the same.
EXTENSIONS = frozenset({
    "allowed_token_ids", "bad_words", "cache_salt", "frequency_penalty", "ignore_eos", "logit_bias",
    "min_p", "min_tokens", "presence_penalty", "repetition_penalty", "seed", "stop_token_ids",
    "top_k",
})  # fmt: skip

_PATH = re.compile(r"(^|; )([\w.\[\]]+)(?=: )")  # as messages begin
_STEP = re.compile(r"\.[^.\[]+|\[\d+\]|^[^.\[]+")


@dataclass(frozen=True, slots=True)
class Names:
    """Paths in the chat request, and what they are in the request that came; the longest counts."""

    paths: Mapping[str, str]

    def own(self, path: str) -> str:
        """The path as the client knows it; one that nobody renamed stays."""
        steps = _STEP.findall(path)
        for count in range(len(steps), 0, -1):
            known = self.paths.get("".join(steps[:count]))
            if known is not None:
                return known + "".join(steps[count:])
        return path

    def reword(self, error: BadRequest) -> BadRequest:
        """The same error in the client's words."""
        message = _PATH.sub(lambda found: found[1] + self.own(found[2]), error.message)
        param = None if error.param is None else self.own(error.param)
        return BadRequest(message, code=error.code, param=param)

    @contextmanager
    def spoken(self) -> Iterator[None]:
        """What is refused inside is refused in the client's words."""
        try:
            yield
        except BadRequest as error:
            raise self.reword(error) from None


@dataclass(frozen=True, slots=True)
class Translation:
    """`ignored`: what nobody knows or can do; `harmless`: what we know and what changes nothing."""

    chat: Mapping[str, Any]
    names: Names
    ignored: tuple[str, ...]
    harmless: tuple[str, ...] = ()

    def read(self, policy: Policy | None = None) -> ChatRequest:
        """The chat request, checked."""
        with self.names.spoken():
            return read_chat(self.chat, policy)[0]

    async def prepare(self, visit: Visit, served: Served) -> tuple[ChatRequest, Prepared]:
        """The chat request, ready to run."""
        request = await aside(lambda: self.read(served.policy), visit.size_bytes)
        with self.names.spoken():
            prepared = await prepare(request, visit, served)
        return request, replace(prepared, calls=tuple(map(self._named, prepared.calls)))

    def _named(self, call: Call) -> Call:
        """With the client's name of the field that constrains: an engine may yet refuse it."""
        constraint = call.generation.constraint
        if constraint is None:
            return call
        constraint = replace(constraint, param=self.names.own(constraint.param))
        return replace(call, generation=replace(call.generation, constraint=constraint))
