"""Router messages as protobuf and back."""

from dataclasses import fields

from diptych.contract import router_pb2 as pb
from diptych.core.blocks import HASH_BYTES
from diptych.core.errors import BadRequest
from diptych.core.ids import BlockHash, Incarnation, Rank, WorkerId
from diptych.core.phases import Phase, Role
from diptych.router.ledger import Carried, Expected, Pending, Share
from diptych.router.messages import (
    Again,
    BlockChanges,
    BlockTier,
    Decided,
    DecodeAt,
    Drain,
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

PlaceUp = Want | Progress | Again | Leave
PlaceDown = Queued | PrefillAt | SkipTo | DecodeAt | RefusedBy | Opened | Ended
MAX_DEADLINE_MS = 2**32 - 1
_CARRIED = tuple(field.name for field in fields(Carried))


def place_up_to_pb(lease: int, message: PlaceUp) -> pb.PlaceUp:
    match message:
        case Want():
            return pb.PlaceUp(lease=lease, want=_want_to_pb(message))
        case Progress(phase, tokens, last_chunk_started):
            return pb.PlaceUp(
                lease=lease,
                progress=pb.Progress(
                    phase=phase, tokens=tokens, last_chunk_started=last_chunk_started
                ),
            )
        case Leave():
            return pb.PlaceUp(lease=lease, leave=pb.Leave())
        case Again():
            return pb.PlaceUp(
                lease=lease,
                again=pb.Again(
                    attempt=message.attempt,
                    failed_worker=message.failed_worker,
                    why=message.why,
                    have=message.have.name,
                    code=message.code,
                    kind=message.kind,
                    partner=message.partner,
                ),
            )


def place_up_from_pb(message: pb.PlaceUp) -> PlaceUp:
    """BadRequest unless it holds one well-formed message."""
    match message.WhichOneof("body"):
        case "want":
            return _want_from_pb(message.want)
        case "progress":
            progress = message.progress
            return Progress(_phase(progress.phase), progress.tokens, progress.last_chunk_started)
        case "again":
            again = message.again
            try:
                have = Have(again.have)
            except ValueError:
                raise BadRequest(f"again.have: unknown value {again.have}") from None
            return Again(
                again.attempt,
                again.failed_worker,
                again.why,
                have,
                again.code,
                again.kind,
                again.partner,
            )
        case "leave":
            return Leave()
        case _:
            raise BadRequest("Place: a message without a body")


def place_down_to_pb(lease: int, message: PlaceDown) -> pb.PlaceDown:
    down = pb.PlaceDown(lease=lease, attempt=message.attempt)
    match message:
        case Opened():
            down.opened.SetInParent()
        case Ended(kind, code, text):
            down.ended.CopyFrom(pb.Ended(kind=kind, code=code, message=text))
        case Queued():
            down.queued.ahead = message.ahead
            down.queued.predicted_ms = _ms(message.predicted_s)
        case PrefillAt():
            down.prefill.CopyFrom(
                pb.PrefillAt(rank=_rank_to_pb(message.rank), reasons=message.reasons)
            )
        case SkipTo():
            down.skip.CopyFrom(pb.SkipTo(rank=_rank_to_pb(message.rank), reasons=message.reasons))
        case DecodeAt():
            down.decode.CopyFrom(
                pb.DecodeAt(rank=_rank_to_pb(message.rank), reasons=message.reasons)
            )
        case RefusedBy():
            down.refused.CopyFrom(
                pb.RefusedBy(
                    code=message.code,
                    message=message.message,
                    retry_after_ms=_ms(message.retry_after_s),
                )
            )
    return down


def place_down_from_pb(message: pb.PlaceDown) -> PlaceDown | None:
    """None for a message of a newer router that this version does not know."""
    attempt = message.attempt
    match message.WhichOneof("body"):
        case "queued":
            return Queued(message.queued.predicted_ms / 1000, message.queued.ahead, attempt)
        case "prefill":
            prefill = message.prefill
            return PrefillAt(_rank_from_pb(prefill.rank), tuple(prefill.reasons), attempt)
        case "skip":
            return SkipTo(_rank_from_pb(message.skip.rank), tuple(message.skip.reasons), attempt)
        case "decode":
            decode = message.decode
            return DecodeAt(_rank_from_pb(decode.rank), tuple(decode.reasons), attempt)
        case "refused":
            refused = message.refused
            return RefusedBy(refused.code, refused.message, refused.retry_after_ms / 1000, attempt)
        case "opened":
            return Opened(attempt)
        case "ended":
            return Ended(message.ended.kind, message.ended.code, message.ended.message, attempt)
        case _:
            return None


def join_to_pb(join: Join) -> pb.Join:
    return pb.Join(
        member_id=join.member_id,
        role=join.role,
        address=join.address,
        incarnation=join.incarnation,
        namespace=join.namespace,
        layout_hash=join.layout_hash,
        model=join.model,
        max_model_len=join.max_model_len,
        block_tokens=join.block_tokens,
        num_blocks=join.num_blocks,
        num_slots=join.num_slots,
        pid=join.pid,
        http_address=join.http_address,
        metrics_address=join.metrics_address,
        keep_tokens=join.keep_tokens,
        is_deterministic=join.is_deterministic,
    )


def join_from_pb(join: pb.Join) -> Join:
    """BadRequest unless the role is known and the member is named."""
    if not join.member_id:
        raise BadRequest("join.member_id is empty", param="member_id")
    try:
        role = Role(join.role)
    except ValueError:
        raise BadRequest(f"join.role: unknown role {join.role!r}", param="role") from None
    return Join(
        member_id=join.member_id,
        role=role,
        address=join.address,
        incarnation=Incarnation(join.incarnation),
        namespace=join.namespace,
        layout_hash=join.layout_hash,
        model=join.model,
        max_model_len=join.max_model_len,
        block_tokens=join.block_tokens,
        num_blocks=join.num_blocks,
        num_slots=join.num_slots,
        pid=join.pid,
        http_address=join.http_address,
        metrics_address=join.metrics_address,
        keep_tokens=join.keep_tokens,
        is_deterministic=join.is_deterministic,
    )


def load_to_pb(load: Load) -> pb.Load:
    return pb.Load(
        running=load.running,
        waiting=load.waiting,
        preparing=load.preparing,
        swapped=load.swapped,
        free_blocks=load.free_blocks,
        cached_blocks=load.cached_blocks,
        free_slots=load.free_slots,
        tickets=load.tickets,
        reservations=load.reservations,
        pulls=load.pulls,
        sessions=load.sessions,
        streams=load.streams,
        tokens_total=load.tokens_total,
        query_tokens_total=load.query_tokens_total,
        hit_tokens_total=load.hit_tokens_total,
        brought_tokens_total=load.brought_tokens_total,
        loads_total=load.loads_total,
        load_us_total=load.load_us_total,
        preemptions_total=load.preemptions_total,
        busy_us_total=load.busy_us_total,
        steps_total=load.steps_total,
        prompt_rows_total=load.prompt_rows_total,
        prompt_pairs_total=load.prompt_pairs_total,
        decode_rows_total=load.decode_rows_total,
        decode_context_total=load.decode_context_total,
        draining=load.draining,
    )


def load_from_pb(load: pb.Load) -> Load:
    return Load(
        running=load.running,
        waiting=load.waiting,
        preparing=load.preparing,
        swapped=load.swapped,
        free_blocks=load.free_blocks,
        cached_blocks=load.cached_blocks,
        free_slots=load.free_slots,
        tickets=load.tickets,
        reservations=load.reservations,
        pulls=load.pulls,
        sessions=load.sessions,
        streams=load.streams,
        tokens_total=load.tokens_total,
        query_tokens_total=load.query_tokens_total,
        hit_tokens_total=load.hit_tokens_total,
        brought_tokens_total=load.brought_tokens_total,
        loads_total=load.loads_total,
        load_us_total=load.load_us_total,
        preemptions_total=load.preemptions_total,
        busy_us_total=load.busy_us_total,
        steps_total=load.steps_total,
        prompt_rows_total=load.prompt_rows_total,
        prompt_pairs_total=load.prompt_pairs_total,
        decode_rows_total=load.decode_rows_total,
        decode_context_total=load.decode_context_total,
        draining=load.draining,
    )


def drain_to_pb(drain: Drain) -> pb.Drain:
    return pb.Drain(on=drain.is_on, limit_ms=_ms(drain.limit_s))


def drain_from_pb(drain: pb.Drain) -> Drain:
    return Drain(drain.on, drain.limit_ms / 1000)


def fleet_to_pb(fleet: Fleet) -> pb.Fleet:
    return pb.Fleet(
        members=[
            pb.Member(
                join=join_to_pb(member.join),
                load=load_to_pb(member.load),
                ready=member.ready,
                not_ready_reason=member.not_ready_reason,
                leases=member.leases,
                silent_ms=_ms(member.silent_s),
            )
            for member in fleet.members
        ],
        ready=fleet.ready,
        reasons=fleet.reasons,
        queued=fleet.queued,
        leases=fleet.leases,
        model=fleet.model,
        namespace=fleet.namespace,
        max_model_len=fleet.max_model_len,
        block_tokens=fleet.block_tokens,
        policy=fleet.policy,
        desired=dict(fleet.desired),
        decisions=[
            pb.Decided(
                request_id=decided.request_id,
                phase=decided.phase,
                worker=decided.worker,
                reasons=decided.reasons,
                age_ms=_ms(decided.age_s),
            )
            for decided in fleet.decisions
        ],
        router_id=fleet.router_id,
        router_life=fleet.router_life,
        peers=fleet.peers,
        stale_peers=fleet.stale_peers,
    )


def fleet_from_pb(fleet: pb.Fleet) -> Fleet:
    return Fleet(
        members=tuple(
            Member(
                join=join_from_pb(member.join),
                load=load_from_pb(member.load),
                ready=member.ready,
                not_ready_reason=member.not_ready_reason,
                leases=member.leases,
                silent_s=member.silent_ms / 1000,
            )
            for member in fleet.members
        ),
        ready=fleet.ready,
        reasons=tuple(fleet.reasons),
        queued=fleet.queued,
        leases=fleet.leases,
        model=fleet.model,
        namespace=fleet.namespace,
        max_model_len=fleet.max_model_len,
        block_tokens=fleet.block_tokens,
        router_id=fleet.router_id,
        router_life=Incarnation(fleet.router_life),
        peers=fleet.peers,
        stale_peers=fleet.stale_peers,
        policy=fleet.policy,
        desired=dict(fleet.desired),
        decisions=tuple(
            Decided(d.request_id, _phase(d.phase), d.worker, tuple(d.reasons), d.age_ms / 1000)
            for d in fleet.decisions
        ),
    )


def share_to_pb(share: Share) -> pb.LedgerShare:
    return pb.LedgerShare(
        router_life=share.router,
        carried=[
            pb.CarriedWork(worker_id=worker, **{name: getattr(work, name) for name in _CARRIED})
            for worker, work in share.carried.items()
        ],
        pending=[
            pb.PendingRows(namespace=namespace, rows=pending.rows, blocks=pending.blocks)
            for namespace, pending in share.pending.items()
        ],
        expected=[
            pb.HitsExpected(worker_id=worker, prompts=hits.prompts, tokens=hits.tokens)
            for worker, hits in share.expected.items()
        ],
        blocked=[
            pb.BlockedPrompt(fingerprint=name, left_ms=_ms(left_s))
            for name, left_s in share.blocked.items()
        ],
    )


def share_from_pb(share: pb.LedgerShare) -> Share:
    return Share(
        Incarnation(share.router_life),
        {
            WorkerId(work.worker_id): Carried(**{name: getattr(work, name) for name in _CARRIED})
            for work in share.carried
        },
        {pending.namespace: Pending(pending.rows, pending.blocks) for pending in share.pending},
        {WorkerId(hits.worker_id): Expected(hits.prompts, hits.tokens) for hits in share.expected},
        {prompt.fingerprint: prompt.left_ms / 1000 for prompt in share.blocked},
    )


def _want_to_pb(want: Want) -> pb.Want:
    message = pb.Want(
        request_id=want.request_id,
        attempt=want.attempt,
        hashes=b"".join(want.hashes),
        prompt_len=want.prompt_len,
        max_new=want.max_new,
        priority_class=want.priority_class,
        tenant=want.tenant,
        deadline_ms=_ms(want.deadline_s),
        fingerprint=want.fingerprint,
    )
    if want.resume is not None:
        message.resume.phase = want.resume.phase
        message.resume.prefill_worker = want.resume.prefill_worker or ""
        message.resume.decode_worker = want.resume.decode_worker or ""
        message.resume.tokens = want.resume.tokens
    return message


def _want_from_pb(want: pb.Want) -> Want:
    hashes = _hashes("want.hashes", want.hashes)
    if not (want.request_id and want.attempt and want.prompt_len and want.max_new):
        raise BadRequest("want: request_id, attempt, prompt_len and max_new are needed")
    resume = None
    if want.HasField("resume"):
        resume = Resume(
            phase=_phase(want.resume.phase),
            prefill_worker=_worker(want.resume.prefill_worker),
            decode_worker=_worker(want.resume.decode_worker),
            tokens=want.resume.tokens,
        )
    return Want(
        request_id=want.request_id,
        prompt_len=want.prompt_len,
        max_new=want.max_new,
        deadline_s=want.deadline_ms / 1000,
        attempt=want.attempt,
        hashes=hashes,
        priority_class=want.priority_class,
        tenant=want.tenant,
        resume=resume,
        fingerprint=want.fingerprint,
    )


def blocks_to_pb(blocks: BlockChanges) -> pb.BlockChanges:
    return pb.BlockChanges(
        first_seq=blocks.first_seq,
        hashes=b"".join(blocks.hashes),
        stored=bytes(blocks.stored),
        tier=blocks.tier.name,
        is_snapshot=blocks.is_snapshot,
        is_first=blocks.is_first,
        is_last=blocks.is_last,
    )


def blocks_from_pb(blocks: pb.BlockChanges) -> BlockChanges:
    """BadRequest unless there are whole hashes, each with what became of it."""
    hashes = _hashes("blocks.hashes", blocks.hashes)
    expected = 0 if blocks.is_snapshot else len(hashes)
    if len(blocks.stored) != expected:
        raise BadRequest(f"blocks.stored: {len(blocks.stored)} bytes; expected {expected}")
    try:
        tier = BlockTier(blocks.tier)
    except ValueError:
        raise BadRequest(f"blocks.tier: unknown value {blocks.tier}") from None
    return BlockChanges(
        first_seq=blocks.first_seq,
        hashes=hashes,
        stored=tuple(map(bool, blocks.stored)),
        tier=tier,
        is_snapshot=blocks.is_snapshot,
        is_first=blocks.is_first,
        is_last=blocks.is_last,
    )


def _hashes(name: str, packed: bytes) -> tuple[BlockHash, ...]:
    if len(packed) % HASH_BYTES:
        raise BadRequest(f"{name}: {len(packed)} bytes are not whole hashes")
    return tuple(BlockHash(packed[i : i + HASH_BYTES]) for i in range(0, len(packed), HASH_BYTES))


def _rank_to_pb(rank: Rank) -> pb.Rank:
    return pb.Rank(
        worker_id=rank.worker_id,
        address=rank.address,
        incarnation=rank.incarnation,
        dp_rank=rank.dp_rank,
    )


def _rank_from_pb(rank: pb.Rank) -> Rank:
    return Rank(WorkerId(rank.worker_id), rank.address, Incarnation(rank.incarnation), rank.dp_rank)


def _worker(name: str) -> WorkerId | None:
    return WorkerId(name) if name else None


def _phase(name: str) -> Phase:
    try:
        return Phase(name)
    except ValueError:
        raise BadRequest(f"phase: unknown phase {name!r}") from None


def _ms(seconds: float) -> int:
    return min(MAX_DEADLINE_MS, max(0, round(seconds * 1000)))
