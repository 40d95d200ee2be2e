"""Settings of what stands behind the gateway: routers, workers, stores."""

import os
from pathlib import Path

from pydantic import Field

from diptych.config.fields import (
    Address,
    Addresses,
    Checkpoint,
    DiskBytes,
    Folder,
    Name,
    Numerics,
    OnOff,
    RedisUrl,
    Replay,
    Routers,
    WorkerRole,
)
from diptych.config.shared import MEMBERSHIP, ROUTERS, ServingSettings, Traced
from diptych.config.sources import Common
from diptych.core.phases import Role


class RouterSettings(ServingSettings):
    """`diptych router`."""

    listen: Address = Field("127.0.0.1:7000", description="where the gRPC server listens")
    router_id: Name = Field(
        default_factory=lambda: f"router-{os.getpid()}", description="name of this router"
    )
    peers: Addresses = Field(
        "", description="the other routers of the fleet, comma-separated; itself may be among them"
    )
    redis_url: RedisUrl = Field(None, description=MEMBERSHIP)
    stores: Addresses = Field(
        "", description="nodes of the KV cache, whose blocks any worker may fetch, comma-separated"
    )
    decisions_file: Path | None = Field(
        None, description="record every decision here, for `diptych router replay`"
    )
    canary: OnOff = Field(
        "on", description="workers serve once a small request has come through them"
    )


class WorkerSettings(Traced, ServingSettings):
    """`diptych prefill` and `diptych decode`."""

    role: WorkerRole = Field(Role.DECODE, description="prefill, decode or hybrid")
    listen: Address = Field("127.0.0.1:0", description="where the gRPC server listens")
    router: Routers = Field("127.0.0.1:7000", description=ROUTERS)
    redis_url: RedisUrl = Field(None, description=MEMBERSHIP)
    checkpoint: Checkpoint = Field(description="folder with config, tokenizer and weights")
    model_name: Name = Field("diptych-tiny", description="the model; part of block identity")
    worker_id: Name = Field(
        default_factory=lambda data: f"{data.get('role', 'worker')}-{os.getpid()}",
        description="unique name of this worker; kept over restarts",
    )
    numerics: Numerics = Field("served", description="arithmetic and cache precision")
    block_tokens: int = Field(128, ge=8, le=1024, multiple_of=8, description="tokens a KV block")
    max_model_len: int | None = Field(
        None, ge=16, description="longest sequence in tokens; default: what the config says"
    )
    num_blocks: int | None = Field(
        None, ge=2, description="KV blocks; default: 1024 tokens a slot, at least one full sequence"
    )
    max_num_seqs: int = Field(64, ge=1, le=4096, description="sequences (slots) at a time")
    max_batch_tokens: int = Field(512, ge=32, le=65536, description="tokens of one engine step")
    num_anchors: int | None = Field(
        None, ge=0, description="kept windows, from which cached prefixes go on; default: 2 a slot"
    )
    swap_bytes: int = Field(
        2**28, ge=0, description="host memory for sequences that gave up their blocks"
    )
    replay: Replay = Field(
        "compact", description="which rows of a prompt the decoder layers compute"
    )
    deterministic: bool = Field(True, description="same seed, same tokens, whatever the batch")
    async_stepping: bool = Field(
        False, description="launch a step before the one ahead of it has been read"
    )
    stores: Addresses = Field(
        "", description="nodes of the KV cache, comma-separated; none: nothing outlives the worker"
    )
    snapshot_tokens: int = Field(
        512,
        ge=0,
        description="tokens between copies of a running sequence's state in the store, in whole "
        "blocks: what a worker's death costs at most; 0 = none",
    )


class CacheFolder(Common):
    """Where a store keeps its blocks."""

    cache_dir: Folder | None = Field(
        None, description="folder of the KV cache; default: cache in the data folder"
    )

    @property
    def cache_folder(self) -> Path:
        return self.cache_dir or self.data_dir / "cache"


class StoreSettings(CacheFolder, ServingSettings):
    """`diptych store`."""

    listen: Address = Field("127.0.0.1:7100", description="where the gRPC server listens")
    store_id: Name = Field(
        default_factory=lambda: f"store-{os.getpid()}", description="unique name of this node"
    )
    redis_url: RedisUrl = Field(None, description=MEMBERSHIP)
    cache_disk_bytes: DiskBytes = Field(
        2 << 30, description="of KV blocks on disk; 0 = memory alone"
    )
    cache_memory_bytes: int = Field(256 << 20, ge=1 << 20, description="of KV blocks in memory")
    cache_fsync_s: float = Field(
        1.0, ge=0, le=3600, description="what a power cut may cost; a killed process costs nothing"
    )
    cache_encrypt: bool = Field(False, description="encrypt blocks on disk, with a key a tenant")
    cache_tenant_bytes: int | None = Field(
        None, ge=0, description="of a tenant on disk; what is above goes first"
    )
    cache_agent_bytes: int | None = Field(None, ge=0, description="likewise of the class agent")
    cache_chat_bytes: int | None = Field(None, ge=0, description="likewise of the class chat")
    cache_pinned_bytes: int | None = Field(
        None, ge=0, description="of what is pinned, a wall; default: a quarter of the disk"
    )
