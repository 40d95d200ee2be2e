"""What clients are told of: each operation at the one path that is its own, aliases left out.

A new dialect adds its line here, and the models of its answers beside its own code or in
`replies.py`. A test compares this table with the routes.
"""

from collections.abc import Iterator

from diptych.gateway.anthropic import reply as theirs
from diptych.gateway.chat.request import ChatRequest
from diptych.gateway.completions.request import CompletionRequest
from diptych.gateway.openapi import replies
from diptych.gateway.openapi.operation import (
    ANYWHERE,
    BEHIND_THE_DOOR,
    GENERATING,
    WITH_A_BODY,
    Operation,
)
from diptych.gateway.openapi.requests import (
    ChatToTokenize,
    MessageRequest,
    MessageToCount,
    ResponseRequest,
)
from diptych.gateway.responses.reply import ResponseReply
from diptych.gateway.signpost import RENDER
from diptych.gateway.tokens.request import TextToTokens, TokensToText


def operations(*, has_render: bool) -> list[Operation]:
    """All of them; `has_render`: prompts may be shown."""
    found = [*_generating(), *_responses(), *_anthropic(), *_of_tokens(), *_of_models(), *_probes()]
    if has_render:
        found.append(
            Operation(
                "POST",
                RENDER,
                "Show the prompt of a conversation",
                {200: replies.Rendered},
                ChatRequest,
                GENERATING,
            )
        )
    return found


def _generating() -> Iterator[Operation]:
    yield Operation(
        "POST",
        "/v1/chat/completions",
        "Answer a conversation",
        {200: replies.ChatCompletion},
        ChatRequest,
        GENERATING,
        can_stream=True,
    )
    yield Operation(
        "POST",
        "/v1/completions",
        "Go on with a text, or fill a hole in it",
        {200: replies.TextCompletion},
        CompletionRequest,
        GENERATING,
        can_stream=True,
    )


def _responses() -> Iterator[Operation]:
    yield Operation(
        "POST",
        "/v1/responses",
        "Answer a conversation, without keeping it",
        {200: ResponseReply},
        ResponseRequest,
        GENERATING,
        can_stream=True,
    )
    for method in ("GET", "POST", "DELETE"):
        yield Operation(
            method,
            "/v1/responses/{id}",
            "No response is kept: there is none to be found",
            {},
            errors=BEHIND_THE_DOOR | {404},
        )


def _anthropic() -> Iterator[Operation]:
    yield Operation(
        "POST",
        "/v1/messages",
        "Answer a conversation, as Anthropic's API does",
        {200: theirs.MessageReply},
        MessageRequest,
        GENERATING,
        theirs.TheirErrorReply,
        can_stream=True,
    )
    yield Operation(
        "POST",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation, as Anthropic's API does",
        {200: theirs.TokenCount},
        MessageToCount,
        GENERATING,
        theirs.TheirErrorReply,
    )


def _of_tokens() -> Iterator[Operation]:
    body = TextToTokens | ChatToTokenize
    for base in ("", "/v1"):
        yield Operation(
            "POST",
            f"{base}/tokenize",
            "Turn a text or a conversation into token ids",
            {200: replies.Tokens},
            body,
            GENERATING,
        )
        yield Operation(
            "POST",
            f"{base}/detokenize",
            "Turn token ids into text",
            {200: replies.Spelled},
            TokensToText,
            WITH_A_BODY | {404},
        )


def _of_models() -> Iterator[Operation]:
    yield Operation("GET", "/v1/models", "List the models", {200: replies.Models})
    yield Operation(
        "GET",
        "/v1/models/{name}",
        "Find a model by its name",
        {200: replies.Model},
        errors=BEHIND_THE_DOOR | {404},
    )


def _probes() -> Iterator[Operation]:
    for path, summary, found in (
        ("/livez", "Does the process answer?", {200: replies.Alive}),
        ("/health", "Does the process answer?", {200: replies.Alive}),
        ("/readyz", "Can requests be served?", {200: replies.Ready, 503: replies.NotReady}),
        ("/ping", "Can requests be served? The status says", {200: None, 503: None}),
        ("/version", "What runs here", {200: replies.Version}),
        ("/openapi.json", "This description", {200: replies.Document}),
    ):
        yield Operation("GET", path, summary, found, errors=ANYWHERE, is_open=True)
