"""Router messages survive the wire."""

from dataclasses import fields

import pytest

from diptych.contract import router_pb2 as pb
from diptych.core.errors import BadRequest
from diptych.core.ids import BlockHash, Incarnation, Rank, WorkerId
from diptych.core.phases import Phase, Role
from diptych.router import wire
from diptych.router.ledger import Carried, Expected, Pending, Share
from diptych.router.messages import (
    Again,
    BlockChanges,
    BlockTier,
    Decided,
    DecodeAt,
    Ended,
    Fleet,
    Have,
    Join,
    Leave,
    Load,
    Member,
    Opened,
    PrefillAt,
    Progress,
    Queued,
    RefusedBy,
    Resume,
    SkipTo,
    Want,
)

RANK = Rank(WorkerId("decode-1"), "127.0.0.1:7", Incarnation(2**64 - 1), 3)
JOIN = Join(
    "decode-1", Role.DECODE, "127.0.0.1:7", Incarnation(2**63), b"n" * 16, b"l" * 16, "m",
    max_model_len=4096, block_tokens=128, num_blocks=9, num_slots=4, pid=7, http_address="h:1",
    metrics_address="h:2", keep_tokens=140,
)  # fmt: skip
HASHES = (BlockHash(b"a" * 16), BlockHash(b"b" * 16))
COUNTED = [field.name for field in fields(Load) if field.type is int]
LOAD = Load(**{name: number for number, name in enumerate(COUNTED, 1)}, draining=True)


@pytest.mark.parametrize(
    "message",
    [
        Want("r", prompt_len=9, max_new=4, deadline_s=1.5),
        Want(
            "r",
            prompt_len=9,
            max_new=4,
            deadline_s=600,
            attempt=3,
            hashes=(BlockHash(b"a" * 16), BlockHash(b"b" * 16)),
            priority_class="batch",
            tenant="t",
            resume=Resume(Phase.DECODE, WorkerId("p"), WorkerId("d"), 7),
            fingerprint=b"f" * 16,
        ),
        Want("r", 9, 4, 1, resume=Resume(Phase.PREFILL)),
        Progress(Phase.PREFILL, 128, last_chunk_started=True),
        Again(2, "decode-1", "worker_lost", Have.TICKET, "worker_lost", "Lost"),
        Again(2, "d1", "0 of 1 blocks", Have.TOKENS, "kv_not_fetched", "Lost", partner="p1"),
        Leave(),
    ],
)
def test_what_a_gateway_says_is_what_the_router_hears(message: wire.PlaceUp) -> None:
    sent = wire.place_up_to_pb(7, message).SerializeToString()
    assert wire.place_up_from_pb(pb.PlaceUp.FromString(sent)) == message


@pytest.mark.parametrize(
    "message",
    [
        Queued(0.25, 3, attempt=2),
        PrefillAt(RANK, ("why", "not"), attempt=2),
        SkipTo(RANK, (), attempt=2),
        DecodeAt(RANK, ("2 rows",), attempt=2),
        RefusedBy("no_capacity", "full", 1.5, attempt=2),
        Opened(attempt=2),
        Ended("BadRequest", "invalid_request", "no", attempt=1),
    ],
)
def test_what_the_router_says_is_what_a_gateway_hears(message: wire.PlaceDown) -> None:
    sent = wire.place_down_to_pb(7, message).SerializeToString()
    assert wire.place_down_from_pb(pb.PlaceDown.FromString(sent)) == message


@pytest.mark.parametrize(
    "blocks",
    [
        BlockChanges(7, HASHES, (True, False)),
        BlockChanges(2**40, HASHES, (), BlockTier.HOST, True, True, False),
        BlockChanges(0, is_snapshot=True, is_last=True),
    ],
)
def test_what_a_cache_announces_is_what_the_index_hears(blocks: BlockChanges) -> None:
    sent = wire.blocks_to_pb(blocks).SerializeToString()
    assert wire.blocks_from_pb(pb.BlockChanges.FromString(sent)) == blocks


@pytest.mark.parametrize(
    "blocks",
    [
        pb.BlockChanges(hashes=b"x" * 17, stored=b"1"),
        pb.BlockChanges(hashes=b"x" * 32, stored=b"1"),
        pb.BlockChanges(hashes=b"x" * 16, stored=b"1", is_snapshot=True),
        pb.BlockChanges(tier=9),
    ],
    ids=["half a hash", "one without its end", "a snapshot that gives up", "unknown tier"],
)
def test_malformed_block_changes_are_refused(blocks: pb.BlockChanges) -> None:
    with pytest.raises(BadRequest, match=r"blocks\."):
        wire.blocks_from_pb(blocks)


def test_a_fleet_survives_the_wire() -> None:
    member = Member(JOIN, LOAD, ready=False, not_ready_reason="draining", leases=2, silent_s=0.5)
    decided = Decided("r", Phase.DECODE, "decode-1", ("the best of 2 with room",), 1.5)
    life = Incarnation(2**64 - 1)
    fleet = Fleet(
        (member,), True, ("a", "b"), 3, 4, "m", b"n" * 16, 4096, 128, "router-1", life, 2, 1,
        policy="own_ledger", desired={"prefill": 2}, decisions=(decided,),
    )  # fmt: skip
    sent = wire.fleet_to_pb(fleet).SerializeToString()
    assert wire.fleet_from_pb(pb.Fleet.FromString(sent)) == fleet


def test_a_share_survives_the_wire() -> None:
    carried = Carried(*range(1, len(fields(Carried)) + 1))
    share = Share(
        Incarnation(2**64 - 1),
        {WorkerId("prefill-1"): carried},
        {b"n" * 16: Pending(3, 40)},
        {WorkerId("decode-1"): Expected(5, 6000)},
        {b"f" * 16: 599.5},
    )
    sent = wire.share_to_pb(share).SerializeToString()
    assert wire.share_from_pb(pb.LedgerShare.FromString(sent)) == share


def test_a_message_of_a_newer_router_is_passed_over() -> None:
    assert wire.place_down_from_pb(pb.PlaceDown(attempt=1)) is None


@pytest.mark.parametrize("join", [pb.Join(role="decode"), pb.Join(member_id="x", role="chef")])
def test_a_member_without_name_or_role_is_refused(join: pb.Join) -> None:
    with pytest.raises(BadRequest, match=r"join\."):
        wire.join_from_pb(join)


def test_a_deadline_beyond_the_field_is_as_long_as_the_field() -> None:
    message = wire.place_up_to_pb(7, Want("r", 1, 1, deadline_s=1e12))
    assert message.want.deadline_ms == wire.MAX_DEADLINE_MS
