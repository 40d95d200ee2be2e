from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Origin(_message.Message):
    __slots__ = ("namespace", "layout_hash", "scope", "tenant")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    layout_hash: bytes
    scope: bytes
    tenant: str
    def __init__(self, namespace: _Optional[bytes] = ..., layout_hash: _Optional[bytes] = ..., scope: _Optional[bytes] = ..., tenant: _Optional[str] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("origin", "hashes", "owner", "pin_ms")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PIN_MS_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    hashes: bytes
    owner: str
    pin_ms: int
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., hashes: _Optional[bytes] = ..., owner: _Optional[str] = ..., pin_ms: _Optional[int] = ...) -> None: ...

class LookupReply(_message.Message):
    __slots__ = ("blocks", "anchors", "pin", "life")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ANCHORS_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    blocks: bytes
    anchors: bytes
    pin: int
    life: NodeLife
    def __init__(self, blocks: _Optional[bytes] = ..., anchors: _Optional[bytes] = ..., pin: _Optional[int] = ..., life: _Optional[_Union[NodeLife, _Mapping]] = ...) -> None: ...

class GreetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeLife(_message.Message):
    __slots__ = ("incarnation", "age_s", "was_empty")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    WAS_EMPTY_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    age_s: float
    was_empty: bool
    def __init__(self, incarnation: _Optional[int] = ..., age_s: _Optional[float] = ..., was_empty: _Optional[bool] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("pin",)
    PIN_FIELD_NUMBER: _ClassVar[int]
    pin: int
    def __init__(self, pin: _Optional[int] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadRight(_message.Message):
    __slots__ = ("origin", "kind")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    kind: int
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., kind: _Optional[int] = ...) -> None: ...

class PutUp(_message.Message):
    __slots__ = ("origin", "retention", "complete", "parent", "first_index", "hashes", "exact", "anchors", "await_disk", "kind")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    ANCHORS_FIELD_NUMBER: _ClassVar[int]
    AWAIT_DISK_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    retention: str
    complete: bool
    parent: bytes
    first_index: int
    hashes: bytes
    exact: bytes
    anchors: _containers.RepeatedScalarFieldContainer[int]
    await_disk: bool
    kind: int
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., retention: _Optional[str] = ..., complete: _Optional[bool] = ..., parent: _Optional[bytes] = ..., first_index: _Optional[int] = ..., hashes: _Optional[bytes] = ..., exact: _Optional[bytes] = ..., anchors: _Optional[_Iterable[int]] = ..., await_disk: _Optional[bool] = ..., kind: _Optional[int] = ...) -> None: ...

class PutDown(_message.Message):
    __slots__ = ("wanted", "credit_bytes", "stored")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    wanted: Wanted
    credit_bytes: int
    stored: Stored
    def __init__(self, wanted: _Optional[_Union[Wanted, _Mapping]] = ..., credit_bytes: _Optional[int] = ..., stored: _Optional[_Union[Stored, _Mapping]] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("blocks", "anchors", "slots")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ANCHORS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    blocks: bytes
    anchors: bytes
    slots: bytes
    def __init__(self, blocks: _Optional[bytes] = ..., anchors: _Optional[bytes] = ..., slots: _Optional[bytes] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("retention", "taken", "on_disk", "dropped")
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    ON_DISK_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    retention: str
    taken: int
    on_disk: int
    dropped: int
    def __init__(self, retention: _Optional[str] = ..., taken: _Optional[int] = ..., on_disk: _Optional[int] = ..., dropped: _Optional[int] = ...) -> None: ...

class ShareUp(_message.Message):
    __slots__ = ("window", "fetch", "put", "filled", "freed")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    FILLED_FIELD_NUMBER: _ClassVar[int]
    FREED_FIELD_NUMBER: _ClassVar[int]
    window: Window
    fetch: Fetch
    put: PutUp
    filled: Filled
    freed: int
    def __init__(self, window: _Optional[_Union[Window, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., put: _Optional[_Union[PutUp, _Mapping]] = ..., filled: _Optional[_Union[Filled, _Mapping]] = ..., freed: _Optional[int] = ...) -> None: ...

class ShareDown(_message.Message):
    __slots__ = ("attached", "filled", "wanted", "stored", "freed")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    FILLED_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    FREED_FIELD_NUMBER: _ClassVar[int]
    attached: Attached
    filled: Filled
    wanted: Wanted
    stored: Stored
    freed: int
    def __init__(self, attached: _Optional[_Union[Attached, _Mapping]] = ..., filled: _Optional[_Union[Filled, _Mapping]] = ..., wanted: _Optional[_Union[Wanted, _Mapping]] = ..., stored: _Optional[_Union[Stored, _Mapping]] = ..., freed: _Optional[int] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("pid", "fd", "slots", "slot_bytes", "nonce")
    PID_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    pid: int
    fd: int
    slots: int
    slot_bytes: int
    nonce: bytes
    def __init__(self, pid: _Optional[int] = ..., fd: _Optional[int] = ..., slots: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("right", "hashes", "part_bytes")
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    right: ReadRight
    hashes: bytes
    part_bytes: int
    def __init__(self, right: _Optional[_Union[ReadRight, _Mapping]] = ..., hashes: _Optional[bytes] = ..., part_bytes: _Optional[int] = ...) -> None: ...

class Filled(_message.Message):
    __slots__ = ("slot", "kind", "hashes", "crcs", "sizes", "last")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    CRCS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    slot: int
    kind: int
    hashes: bytes
    crcs: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    last: bool
    def __init__(self, slot: _Optional[int] = ..., kind: _Optional[int] = ..., hashes: _Optional[bytes] = ..., crcs: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ..., last: _Optional[bool] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("incarnation", "seq")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    seq: int
    def __init__(self, incarnation: _Optional[int] = ..., seq: _Optional[int] = ...) -> None: ...

class IndexNews(_message.Message):
    __slots__ = ("incarnation", "seq", "snapshot", "more", "came", "tier", "hashes")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    CAME_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    seq: int
    snapshot: bool
    more: bool
    came: bool
    tier: str
    hashes: bytes
    def __init__(self, incarnation: _Optional[int] = ..., seq: _Optional[int] = ..., snapshot: _Optional[bool] = ..., more: _Optional[bool] = ..., came: _Optional[bool] = ..., tier: _Optional[str] = ..., hashes: _Optional[bytes] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("node", "accounts", "disk", "memory_bytes", "memory_capacity", "memory_parts", "disk_parts", "queued_bytes", "counters", "pins")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PARTS_FIELD_NUMBER: _ClassVar[int]
    DISK_PARTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    node: str
    accounts: _containers.RepeatedCompositeFieldContainer[Account]
    disk: Balance
    memory_bytes: int
    memory_capacity: int
    memory_parts: int
    disk_parts: int
    queued_bytes: int
    counters: _containers.ScalarMap[str, int]
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    def __init__(self, node: _Optional[str] = ..., accounts: _Optional[_Iterable[_Union[Account, _Mapping]]] = ..., disk: _Optional[_Union[Balance, _Mapping]] = ..., memory_bytes: _Optional[int] = ..., memory_capacity: _Optional[int] = ..., memory_parts: _Optional[int] = ..., disk_parts: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ...) -> None: ...

class Account(_message.Message):
    __slots__ = ("tenant", "retention", "age_days", "size_bytes")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    AGE_DAYS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    retention: str
    age_days: int
    size_bytes: int
    def __init__(self, tenant: _Optional[str] = ..., retention: _Optional[str] = ..., age_days: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Balance(_message.Message):
    __slots__ = ("capacity", "live", "dead", "pinned", "reserved")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    capacity: int
    live: int
    dead: int
    pinned: int
    reserved: int
    def __init__(self, capacity: _Optional[int] = ..., live: _Optional[int] = ..., dead: _Optional[int] = ..., pinned: _Optional[int] = ..., reserved: _Optional[int] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("owner", "reason", "parts", "left_s", "leaked")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    LEAKED_FIELD_NUMBER: _ClassVar[int]
    owner: str
    reason: str
    parts: int
    left_s: float
    leaked: bool
    def __init__(self, owner: _Optional[str] = ..., reason: _Optional[str] = ..., parts: _Optional[int] = ..., left_s: _Optional[float] = ..., leaked: _Optional[bool] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[SegmentRow]
    def __init__(self, segments: _Optional[_Iterable[_Union[SegmentRow, _Mapping]]] = ...) -> None: ...

class SegmentRow(_message.Message):
    __slots__ = ("name", "tenant", "retention", "day", "namespace", "parts", "live_bytes", "size_bytes", "growing", "encrypted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    DAY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    LIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROWING_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    tenant: str
    retention: str
    day: int
    namespace: bytes
    parts: int
    live_bytes: int
    size_bytes: int
    growing: bool
    encrypted: bool
    def __init__(self, name: _Optional[str] = ..., tenant: _Optional[str] = ..., retention: _Optional[str] = ..., day: _Optional[int] = ..., namespace: _Optional[bytes] = ..., parts: _Optional[int] = ..., live_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ..., growing: _Optional[bool] = ..., encrypted: _Optional[bool] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifyReply(_message.Message):
    __slots__ = ("read_bytes", "corrupt")
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    read_bytes: int
    corrupt: int
    def __init__(self, read_bytes: _Optional[int] = ..., corrupt: _Optional[int] = ...) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ("foreign",)
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    foreign: bool
    def __init__(self, foreign: _Optional[bool] = ...) -> None: ...

class CollectReply(_message.Message):
    __slots__ = ("moved_bytes", "freed_bytes")
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    moved_bytes: int
    freed_bytes: int
    def __init__(self, moved_bytes: _Optional[int] = ..., freed_bytes: _Optional[int] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class RemoveReply(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: str
    def __init__(self, receipt: _Optional[str] = ...) -> None: ...
