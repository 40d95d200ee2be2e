"""Settings of the gateway."""

import os
from typing import Literal

from pydantic import Field

from diptych.config.fields import (
    Address,
    Addresses,
    AdminAddress,
    Aliases,
    Checkpoint,
    File,
    Name,
    Networks,
    OnOff,
    Port,
    RedisUrl,
    Routers,
    Routes,
    Secret,
)
from diptych.config.shared import ROUTERS, ServingSettings, Traced
from diptych.config.sources import Common


class Public(Common):
    """What concerns the ports that people reach: of `diptych up` and `diptych gateway`."""

    host: str = Field("127.0.0.1", description="where HTTP is served")
    port: Port = Field(8000, description="port of HTTP; 0 = any free one")
    allow_anonymous: bool = Field(
        False, description="let in who sends no API key, even where other machines reach us"
    )
    tls_certificate: File | None = Field(None, description="PEM chain; HTTPS instead of HTTP")
    tls_key: File | None = Field(None, description="PEM key of the certificate")
    tls_client_ca: File | None = Field(
        None, description="PEM; who calls the admin port must have a certificate of it"
    )
    admin_listen: AdminAddress = Field(
        "127.0.0.1:0", description="where the admin API is served; port 0 = any free one, or off"
    )
    playground: OnOff = Field("on", description="the chat page at /")


class ApiSettings(Common):
    """What an operator decides about the API: `gateway/policy.py` hands it on."""

    sampling_policy: Literal["honor", "deepseek"] = Field(
        "honor", description="honor what clients send, or fix it as DeepSeek's own API does"
    )
    model_aliases: Aliases = Field(
        "",
        description="more names of the model, comma-separated; * stands for anything, =plain or "
        "=thinking behind a name is its default",
    )
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = Field(
        "reasoning_content", description="where answers tell the model's reasoning"
    )
    stream_usage_style: Literal["openai", "deepseek"] = Field(
        "openai", description="usage of a stream in a chunk of its own if asked for, or always"
    )
    keepalive_style: Literal["comment+chunk", "chunk", "comment", "off"] = Field(
        "comment+chunk", description="what a silent stream sends"
    )
    nonstream_keepalive_s: float | None = Field(
        None, gt=0, description="seconds between blank lines before a whole answer; default: none"
    )
    queue_timeout_s: float = Field(
        600, gt=0, le=3600, description="how long a request may wait for a worker, in seconds"
    )
    map_user_to_user_id: bool = Field(False, description="take user for user_id")
    allow_raw_special: bool = Field(True, description="raw prompts may spell special tokens")
    messages_default_thinking: bool = Field(
        True, description="whether Messages requests think that do not say"
    )
    clip_explicit_max_tokens: bool = Field(
        False, description="shorten an explicit limit that exceeds the context, not refuse it"
    )
    strict_reasoning_passback: bool = Field(
        False, description="refuse calls in a thinking history without reasoning_content"
    )
    deepseek_compat_errors: bool = Field(
        False, description="refuse forced calls in thinking mode, as DeepSeek's own API does"
    )
    max_n: int = Field(16, ge=1, le=128, description="most choices of a request")
    allow_tasks: bool = Field(False, description="accept quick instructions (task)")
    allow_render: bool = Field(False, description="offer the endpoint that shows a prompt")
    allow_openapi: bool = Field(True, description="describe the API at /openapi.json")
    git_commit: str = Field(
        "", pattern=r"^([0-9a-f]{7,64})?$", description="commit of this build, which /version tells"
    )


class GatewaySettings(Public, ApiSettings, Traced, ServingSettings):
    """`diptych gateway`."""

    router: Routers = Field("127.0.0.1:7000", description=ROUTERS)
    checkpoint: Checkpoint = Field(description="folder whose tokenizer and config are served")
    model_name: Name = Field("diptych-tiny", description="name of the model in the API")
    gateway_id: Name = Field(
        default_factory=lambda: f"gateway-{os.getpid()}", description="unique name of this process"
    )
    redis_url: RedisUrl = Field(
        None,
        description="keys, limits and usage of several gateways, and who is there; default: the "
        "data folder",
    )
    key_pepper: Secret = Field(
        None,
        description="hashes API keys, newest first, comma-separated; default: made once in the "
        "data folder",
    )
    trusted_proxies: Networks = Field(
        "", description="networks of proxies whose X-Forwarded-For counts, comma-separated"
    )
    supervisor: Address | None = Field(
        None, description="where the supervisor takes orders to scale; `diptych up` gives it"
    )
    stores: Addresses = Field(
        "", description="nodes of the KV cache that the console shows, comma-separated"
    )
    route_retention: Routes = Field(
        "",
        description="how long the cache keeps KV by path, e.g. */messages=agent, comma-separated; "
        "for keys of the class chat",
    )
    usage_days: int = Field(400, ge=1, le=4000, description="how long usage records are kept")
    audit_days: int = Field(400, ge=1, le=4000, description="how long audit entries are kept")
