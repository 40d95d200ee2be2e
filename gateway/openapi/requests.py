"""Bodies as clients are told of them, where no one model of ours reads all that they hold."""

from diptych.gateway.anthropic.request import CountRequest, MessagesRequest
from diptych.gateway.chat.request import ChatRequest
from diptych.gateway.generation import OutputLimit, Stops
from diptych.gateway.responses.request import ResponsesRequest


class ChatToTokenize(ChatRequest):
    """A chat request, of which only the prompt is wanted."""

    return_token_strs: bool = False


class MessageToCount(CountRequest):
    """A request for a message, of which only the length of the prompt is wanted."""

    model: str


class MessageRequest(MessagesRequest):
    """A request for a message."""

    model: str
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: Stops | None = None


class ResponseRequest(ResponsesRequest):
    """A request for a response."""

    model: str
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: OutputLimit | None = None
