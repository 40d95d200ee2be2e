"""Bodies of the admin API. What they may hold in detail is checked by the desk."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from diptych.gateway.tenancy.keys import DEFAULT_TENANT, Limits, Scope

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Text = Annotated[str, Field(max_length=128)]
Texts = Annotated[list[Text], Field(max_length=64)]
Count = Annotated[int, Field(ge=1, le=10**15, strict=True)]
Seconds = Annotated[float, Field(ge=0, le=30 * 86_400)]


class LimitsBody(BaseModel):
    """Absent or null is unlimited."""

    model_config = STRICT
    requests_per_min: Count | None = None
    tokens_per_min: Count | None = None
    concurrency: Count | None = None
    max_input_tokens: Count | None = None
    max_output_tokens: Count | None = None
    tokens_per_day: Count | None = None
    tokens_per_month: Count | None = None

    def read(self) -> Limits:
        return Limits(**self.model_dump())


class NewKey(BaseModel):
    """A key to be made."""

    model_config = STRICT
    name: Text
    tenant: Text = DEFAULT_TENANT
    scopes: list[Scope] = Field([Scope.INFERENCE], min_length=1, max_length=8)
    models: Texts = Field([], description="empty is all")
    limits: LimitsBody = LimitsBody()
    priority_class: Text = Field("", alias="class")
    retention: Text = Field("chat", description="of cached KV: chat 7 d, agent 3 d, pinned, none")
    networks: Texts = Field([], description="where it may be used from; empty is everywhere")
    expires_at: AwareDatetime | None = None


class KeyChange(BaseModel):
    """Only what is given changes; null takes an expiry away."""

    model_config = STRICT
    name: Text = ""
    scopes: list[Scope] = Field([], min_length=1, max_length=8)
    models: Texts = []
    limits: LimitsBody = LimitsBody()
    priority_class: Text = Field("", alias="class")
    retention: Text = "chat"
    networks: Texts = []
    expires_at: AwareDatetime | None = None


class Rotation(BaseModel):
    """How long the last secret stays valid."""

    model_config = STRICT
    overlap_s: Seconds = 86_400.0


class KeyView(BaseModel):
    """A key as it may be shown."""

    id: str
    name: str
    tenant: str
    state: Literal["active", "expired", "revoked"]
    scopes: list[Scope]
    models: list[str]
    limits: LimitsBody
    priority_class: str = Field(alias="class")
    retention: str
    networks: list[str]
    last_chars: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    old_secret_until: datetime | None
    creator: str


class MadeKey(KeyView):
    """With its secret, which is never shown again."""

    key: str


class LogLevel(BaseModel):
    """For a logger and those below it; after `ttl_s` it is as before."""

    model_config = STRICT
    logger: str = Field("diptych", pattern=r"^diptych(\.[a-z_]+)*$", max_length=128)
    level: Literal["debug", "info", "warning", "error"]
    ttl_s: Annotated[float, Field(gt=0, le=86_400)] | None = None


class Deletion(BaseModel):
    """Whose data to delete: one of the two."""

    model_config = STRICT
    key_id: Text | None = None
    user_id: Annotated[str, Field(max_length=512)] | None = None


class DrainBody(BaseModel):
    """How long a worker may take; 0 is as long as it takes."""

    model_config = STRICT
    limit_s: Annotated[float, Field(ge=0, le=86_400)] = 900.0


class ScaleBody(BaseModel):
    """The sizes that pools shall have; those not given stay."""

    model_config = STRICT
    prefill: Annotated[int, Field(ge=1, le=64, strict=True)] | None = None
    decode: Annotated[int, Field(ge=1, le=64, strict=True)] | None = None
    hybrid: Annotated[int, Field(ge=1, le=64, strict=True)] | None = None
