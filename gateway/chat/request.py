"""The body of a chat request: every field that works, and what becomes of those that do not."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from diptych.core.errors import BadRequest
from diptych.core.sampling import MAX_TOP_LOGPROBS
from diptych.gateway.chat.conversation import check_conversation
from diptych.gateway.chat.messages import AssistantMessage, ChatMessage
from diptych.gateway.chat.tools import Calling, Choice, Mode, ToolChoice, Tools
from diptych.gateway.fields import Int, explain
from diptych.gateway.generation import STRICT, GenerationRequest, OutputLimit

EFFORTS = {
    "minimal": 50,
    "low": 50,
    "medium": 75,
    "high": 75,
    "xhigh": 75,
    "max": 100,
    "ultra": 100,
}
DEFAULT_EFFORT = 75
NO_EFFORT = 0


def _effort(value: Any) -> int:
    """1-100; NO_EFFORT for `none`."""
    if isinstance(value, str):
        if value in EFFORTS:
            return EFFORTS[value]
        if value == "none":
            return NO_EFFORT
        value = int(value) if value.isascii() and value.isdecimal() and len(value) < 4 else -1
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and value == int(value) and 1 <= value <= 100):
        names = ", ".join(["none", *EFFORTS])
        raise PydanticCustomError("invalid_value", f"expected one of {names}, or 1 to 100")
    return int(value)


Effort = Annotated[int, BeforeValidator(_effort)]


class Thinking(BaseModel):
    """DeepSeek's switch."""

    model_config = STRICT
    type: Literal["enabled", "disabled", "adaptive"]


class TemplateArguments(BaseModel):
    """The same switch under other names."""

    model_config = STRICT
    thinking: bool | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None


class ChatRequest(GenerationRequest):
    """A null is an absent field. Properties give the values that hold after all defaults."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: OutputLimit | None = None
    max_tokens: OutputLimit | None = None
    logprobs: bool = False
    top_logprobs: Int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    tools: Tools = Field([])
    tool_choice: Choice = ToolChoice(Mode.AUTO)
    parallel_tool_calls: bool = True
    thinking: Thinking | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: TemplateArguments | None = None
    include_reasoning: bool = True

    @property
    def is_continued(self) -> bool:
        """Whether the answer goes on with the last message."""
        last = self.messages[-1]
        return isinstance(last, AssistantMessage) and bool(last.prefix)

    @property
    def calling(self) -> Calling:
        """Tools, and which of them to call."""
        return Calling(tuple(self.tools), self.tool_choice, self.parallel_tool_calls)

    @property
    def output_limit(self) -> int | None:
        """The limit that the client asked for."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def top(self) -> int | None:
        """Alternatives to report with each token; None: no log-probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def effort(self) -> int | None:
        """How hard to think, 1-100; None = not at all."""
        template = self.chat_template_kwargs or TemplateArguments()
        effort = self.reasoning_effort
        if effort is None:
            effort = template.reasoning_effort
        switch: bool | None = None
        if self.thinking is not None:
            switch = self.thinking.type != "disabled"
        elif template.thinking is not None:
            switch = template.thinking
        elif template.enable_thinking is not None:
            switch = template.enable_thinking
        if switch is False or (switch is None and effort == NO_EFFORT):
            return None
        return effort or DEFAULT_EFFORT


# Known fields that are accepted and change nothing.
NO_EFFECT = {
    "metadata", "priority", "prompt_cache_key", "request_id", "rid",
    "safety_identifier", "service_tier", "store", "stream_reasoning", "user", "verbosity",
}  # fmt: skip
# Known fields that are not supported, each with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "data_parallel_rank": (),
    "documents": (),
    "function_call": (),
    "functions": (),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "lora": (),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "separate_reasoning": (True,),
    "skip_special_tokens": (True,),
    "task": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "web_search_options": (),
}
_HINTS = {
    "function_call": "use tool_choice",
    "functions": "use tools",
    "guided_choice": "use structured_outputs.choice",
    "guided_decoding_backend": "a constraint has the same meaning with each of ours",
    "guided_grammar": "use structured_outputs.grammar",
    "guided_json": "use structured_outputs.json",
    "guided_regex": "use structured_outputs.regex",
    "guided_whitespace_pattern": "use structured_outputs.whitespace_pattern",
}


def read_chat(body: Mapping[str, Any]) -> tuple[ChatRequest, list[str]]:
    """The request, and the names of fields that nobody knows; BadRequest names what is wrong."""
    given = {name: value for name, value in body.items() if value is not None}
    if given.get("model") == "":
        del given["model"]  # naming no model is not naming one
    for name, neutral in _UNSUPPORTED.items():
        if name in given and not any(_is_same(given[name], value) for value in neutral):
            hint = f"; {_HINTS[name]}" if name in _HINTS else ""
            message = f"{name} is not supported{hint}"
            raise BadRequest(message, code="unsupported_parameter", param=name)
    known = ChatRequest.model_fields.keys() | _UNSUPPORTED.keys() | NO_EFFECT
    unknown = [name for name in given if name not in known]
    try:
        request = ChatRequest.model_validate(given)
    except ValidationError as error:
        raise explain(error) from None
    request.check()
    check_conversation(request.messages)
    request.calling.check()
    _check_together(request)
    return request, unknown


def _check_together(request: ChatRequest) -> None:
    if request.top_logprobs and not request.logprobs:
        message = "top_logprobs are reported with logprobs: true only"
        raise BadRequest(message, code="conflicting_parameters", param="top_logprobs")


def _is_same(value: object, neutral: object) -> bool:
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral
