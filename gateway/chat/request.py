"""The body of a chat request: every field that works, and what becomes of those that do not."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from diptych.core.sampling import MAX_TOP_LOGPROBS
from diptych.gateway.chat.conversation import (
    check_continued,
    check_conversation,
    check_reasoning,
)
from diptych.gateway.chat.messages import AssistantMessage, ChatMessage, UserMessage, image_parts
from diptych.gateway.chat.tasks import TaskName
from diptych.gateway.chat.tools import Calling, Choice, Mode, ToolChoice, Tools
from diptych.gateway.constraint import conflict
from diptych.gateway.errors import HttpError
from diptych.gateway.fields import Int, Long, explain, given_fields, refuse_unsupported
from diptych.gateway.generation import NO_EFFECT, STRICT, GenerationRequest, OutputLimit
from diptych.gateway.images import ImageSource
from diptych.gateway.policy import Policy
from diptych.text.chat import Task

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


EffortName = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]
EffortLevel = Annotated[int, Field(ge=1, le=100)]
Effort = Annotated[int, BeforeValidator(_effort, json_schema_input_type=EffortName | EffortLevel)]


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

    messages: Long[ChatMessage] = Field(min_length=1)
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
    thinking_token_budget: Int | None = Field(None, ge=0, lt=2**31)
    include_reasoning: bool = True
    separate_reasoning: bool = True
    stream_reasoning: bool = True
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    task: TaskName | None = None

    @property
    def is_continued(self) -> bool:
        """Whether the answer goes on with the last message."""
        last = self.messages[-1]
        if not isinstance(last, AssistantMessage):
            return False
        return bool(last.prefix) or self.continue_final_message

    @property
    def instruction(self) -> Task | None:
        """The quick instruction, of the request or of what the user said last."""
        said = (m for m in reversed(self.messages) if isinstance(m, UserMessage))
        return self.task or next((message.task for message in said), None)

    @property
    def image_sources(self) -> list[ImageSource]:
        """Images of all messages, in order."""
        return [
            ImageSource(
                part.image_url.url,
                part.image_url.detail == "low",
                f"messages[{number}].content[{place}].image_url",
            )
            for number, message in enumerate(self.messages)
            for place, part in image_parts(message)
        ]

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
        effort = self.reasoning_effort
        if effort is None and self.chat_template_kwargs is not None:
            effort = self.chat_template_kwargs.reasoning_effort
        switch = self._switch
        if switch is False or (switch is None and effort == NO_EFFORT):
            return None
        return effort or DEFAULT_EFFORT

    @property
    def _switch(self) -> bool | None:
        """Whether to think, if the client says so."""
        template = self.chat_template_kwargs or TemplateArguments()
        if self.thinking is not None:
            return self.thinking.type != "disabled"
        return template.enable_thinking if template.thinking is None else template.thinking

    @property
    def is_reasoning_separate(self) -> bool:
        """Whether the answer has a field for the reasoning."""
        has_reasoning = self.effort is not None and self.instruction is None
        return has_reasoning and self.include_reasoning and self.separate_reasoning

    def under(self, policy: Policy) -> Self:
        """The same request as the operator wants it to be understood."""
        request = super().under(policy)
        if request._switch is None and not policy.thinks(self.model):
            return request.model_copy(update={"thinking": Thinking(type="disabled")})
        return request


# Known fields that are not supported, each with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "chat_template": (),
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
    "kv_transfer_params": (),
    "lora": (),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
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


def read_chat(
    body: Mapping[str, Any], policy: Policy | None = None
) -> tuple[ChatRequest, list[str]]:
    """The request, and the names of fields that nobody knows; BadRequest names what is wrong."""
    policy = policy or Policy()
    given = given_fields(body)
    refuse_unsupported(given, _UNSUPPORTED, _HINTS)
    known = ChatRequest.model_fields.keys() | _UNSUPPORTED.keys() | NO_EFFECT
    unknown = [name for name in given if name not in known]
    try:
        request = ChatRequest.model_validate(given).under(policy)
    except ValidationError as error:
        raise explain(error) from None
    request.check(policy)
    check_conversation(request.messages)
    request.calling.check()
    _check_together(request)
    _check_allowed(request, policy)
    return request, unknown


def _check_together(request: ChatRequest) -> None:
    if request.top_logprobs and not request.logprobs:
        raise conflict("top_logprobs are reported with logprobs: true only", "top_logprobs")
    if request.add_generation_prompt is request.continue_final_message:
        text = "continue_final_message: true and add_generation_prompt: false go together"
        raise conflict(text, "add_generation_prompt")
    if request.continue_final_message:
        check_continued(request.messages)
    if request.instruction is not None and request.is_continued:
        raise conflict("a task is no answer that has begun", "task")
    if request.truncate_prompt_tokens is not None and request.image_sources:
        raise conflict("a prompt with images is not cut", "truncate_prompt_tokens")


def _check_allowed(request: ChatRequest, policy: Policy) -> None:
    """What other servers of the model do not take is refused if the operator wants so."""
    if request.instruction is not None and not policy.allow_tasks:
        text = "task: quick instructions are switched off on this server"
        raise HttpError(501, "not_implemented", text, {"x-should-retry": "false"})
    if request.effort is None:
        return
    if policy.deepseek_compat_errors and request.calling.is_forced:
        raise conflict("Thinking mode does not support this tool_choice", "tool_choice")
    if policy.strict_reasoning_passback:
        check_reasoning(request.messages)
