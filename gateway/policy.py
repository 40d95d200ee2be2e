"""What the operator decides about the API. Every dialect reads it; nobody changes it."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from diptych.config import GatewaySettings
from diptych.core.sampling import Sampling

SamplingPolicy = Literal["honor", "deepseek"]
ReasoningField = Literal["reasoning_content", "reasoning", "both"]
UsageStyle = Literal["openai", "deepseek"]
KeepAliveStyle = Literal["comment+chunk", "chunk", "comment", "off"]

_SWITCH = {"": None, "thinking": True, "plain": False}


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of the model. With a `*` it is a pattern and stands for many."""

    name: str
    thinks: bool | None = None  # where the client does not say; None: as the model's own name

    def covers(self, name: str) -> bool:
        """Whether a client's name of the model is this one."""
        return fnmatchcase(name, self.name) if self.is_pattern else name == self.name

    @property
    def is_pattern(self) -> bool:
        return "*" in self.name


@dataclass(frozen=True, slots=True)
class Policy:
    """Defaults are those of the API's documentation."""

    sampling_policy: SamplingPolicy = "honor"  # deepseek: fixed values, as its own API does
    aliases: tuple[Alias, ...] = ()  # the first that covers a name counts
    reasoning_field: ReasoningField = "reasoning_content"  # of answers; requests know both
    stream_usage_style: UsageStyle = "openai"  # deepseek: with each stream's last chunk of text
    keepalive_style: KeepAliveStyle = "comment+chunk"
    nonstream_keepalive_s: float | None = None  # between blank lines before a whole answer
    queue_timeout_s: float = 600.0
    map_user_to_user_id: bool = False
    allow_raw_special: bool = True  # raw prompts may spell special tokens
    messages_default_thinking: bool = True  # of the Messages API
    clip_explicit_max_tokens: bool = False
    strict_reasoning_passback: bool = False
    deepseek_compat_errors: bool = False  # refuse what only DeepSeek's own API refuses
    max_n: int = 16
    allow_tasks: bool = False
    allow_render: bool = False
    allow_openapi: bool = True
    git_commit: str = ""  # of this build, for /version

    def alias(self, name: str) -> Alias | None:
        """The alias that covers a name."""
        return next((alias for alias in self.aliases if alias.covers(name)), None)

    def thinks(self, name: str, default: bool = True) -> bool:
        """Whether the model reasons when a client calls it by this name and does not say more."""
        alias = self.alias(name)
        return default if alias is None or alias.thinks is None else alias.thinks

    def sampling(self, asked: Sampling, *, is_thinking: bool) -> Sampling:
        """Of a chat: what the client wants, or what DeepSeek's own API makes of it."""
        if self.sampling_policy == "honor":
            return asked
        if not is_thinking:
            return replace(asked, top_p=1.0)
        return replace(
            asked,
            temperature=1.0,
            top_p=max(0.95, asked.top_p),
            repetition_penalty=1.0,
            frequency_penalty=0.0,
            presence_penalty=0.0,
        )


def policy_of(settings: GatewaySettings) -> Policy:
    """As configured."""
    return Policy(
        sampling_policy=settings.sampling_policy,
        aliases=read_aliases(settings.model_aliases),
        reasoning_field=settings.reasoning_field,
        stream_usage_style=settings.stream_usage_style,
        keepalive_style=settings.keepalive_style,
        nonstream_keepalive_s=settings.nonstream_keepalive_s,
        queue_timeout_s=settings.queue_timeout_s,
        map_user_to_user_id=settings.map_user_to_user_id,
        allow_raw_special=settings.allow_raw_special,
        messages_default_thinking=settings.messages_default_thinking,
        clip_explicit_max_tokens=settings.clip_explicit_max_tokens,
        strict_reasoning_passback=settings.strict_reasoning_passback,
        deepseek_compat_errors=settings.deepseek_compat_errors,
        max_n=settings.max_n,
        allow_tasks=settings.allow_tasks,
        allow_render=settings.allow_render,
        allow_openapi=settings.allow_openapi,
        git_commit=settings.git_commit,
    )


def read_aliases(text: str) -> tuple[Alias, ...]:
    """`name`, `name=plain` or `name=thinking`, comma-separated; config checked the form."""
    words = (word.strip().partition("=") for word in text.split(",") if word.strip())
    return tuple(Alias(name, _SWITCH[switch]) for name, _, switch in words)
