"""Settings of commands that people run."""

from pydantic import Field, SecretStr

from diptych.config.fields import (
    Addresses,
    Checkpoint,
    Name,
    Numerics,
    RedisUrl,
    Routers,
    Secret,
    ServiceUrl,
)
from diptych.config.front import Public
from diptych.config.shared import Observed, Stationed, Traced
from diptych.config.sources import Common
from diptych.config.stations import CacheFolder


class CacheSettings(CacheFolder, Stationed):
    """`diptych cache`: which stores are meant."""

    store_address: Addresses = Field(
        "",
        description="the nodes to ask, comma-separated; default: the one that uses the folder, "
        "else the folder",
    )


class UpSettings(Public, Traced, Observed):
    """`diptych up`."""

    prefill: int = Field(1, ge=0, le=64, description="prefill workers")
    decode: int = Field(1, ge=0, le=64, description="decode workers")
    store: int = Field(1, ge=0, le=1, description="KV cache stores")
    routers: int = Field(1, ge=1, le=4, description="routers")
    hybrid: bool = Field(False, description="decode workers compute prompts too; no prefill")
    checkpoint: Checkpoint | None = Field(
        None, description="model folder; default: the embedded one"
    )
    model_name: Name | None = Field(None, description="name of the model in the API")
    max_model_len: int | None = Field(None, ge=16, description="longest sequence in tokens")
    numerics: Numerics = Field("served", description="arithmetic and cache precision")
    max_num_seqs: int = Field(64, ge=1, le=4096, description="sequences (slots) of a worker")
    num_blocks: int | None = Field(None, ge=2, description="KV blocks of a worker")
    ready_timeout_s: float = Field(180, gt=0, description="how long starting may take")
    station_tls: bool = Field(
        False, description="mutual TLS between the processes, by certificates in the data folder"
    )


class KeysSettings(Common):
    """`diptych keys`: where the gateways keep them."""

    redis_url: RedisUrl = Field(None, description="Redis of the gateways; default: the data folder")
    key_pepper: Secret = Field(None, description="as the gateways have it")


class DrainSettings(Stationed):
    """`diptych drain`: at which router."""

    router: Routers | None = Field(
        None, description="the routers; default: those of the platform on the data folder"
    )
    limit_s: float = Field(
        900, ge=0, le=86_400, description="then what is left is handed back; 0 = never"
    )


class DoctorSettings(Stationed):
    """`diptych doctor`: what to look at besides the platform on the data folder."""

    redis_url: RedisUrl = Field(None, description="Redis that the gateways use; default: none")


class ChatSettings(Common):
    """`diptych chat`: which gateway to talk to."""

    url: ServiceUrl | None = Field(
        None, description="the gateway; default: that of the platform on the data folder"
    )
    api_key: SecretStr | None = Field(None, description="for gateways that ask for one")
