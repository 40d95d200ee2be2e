"""Values of the domain to and from the messages of a Session."""

from diptych.contract import worker_pb2 as pb
from diptych.core.blocks import HASH_BYTES, pack_ids, unpack_ids
from diptych.core.errors import TICKET_GONE, BadRequest, DiptychError, Lost, Overloaded, Refused
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import PRIORITIES, Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Chunk, Row
from diptych.transport.errors import kind_of, make


def key_to_pb(key: Key) -> pb.RequestKey:
    return pb.RequestKey(request_id=key.request_id, attempt=key.attempt)


def key_from_pb(key: pb.RequestKey) -> Key:
    return Key(key.request_id, key.attempt)


def generation_to_pb(generation: Generation) -> pb.Generation:
    s = generation.sampling
    return pb.Generation(
        key=key_to_pb(generation.key),
        prompt=pack_ids(generation.prompt),
        forced=pack_ids(generation.forced),
        prompt_len=len(generation.prompt),
        max_new=generation.max_new,
        sampling=pb.Sampling(
            temperature=s.temperature,
            top_p=s.top_p,
            top_k=s.top_k,
            min_p=s.min_p,
            seed=s.seed,
            ignore_eos=s.ignore_eos,
            stop_token_ids=s.stop_token_ids,
        ),
        scope=generation.scope,
        priority=generation.priority,
        tenant=generation.tenant,
    )


def generation_from_pb(generation: pb.Generation) -> Generation:
    """Read and check a generation; BadRequest naming the first field that cannot be."""
    prompt = _ids("prompt", generation.prompt)
    forced = _ids("forced", generation.forced)
    if not prompt or generation.prompt_len != len(prompt):
        raise BadRequest(
            f"prompt_len is {generation.prompt_len} and the prompt has {len(prompt)} tokens",
            param="prompt_len",
        )
    if generation.max_new <= len(forced):
        raise BadRequest(
            f"max_new is {generation.max_new}; expected more than the {len(forced)} forced tokens",
            param="max_new",
        )
    if len(generation.scope) not in (0, HASH_BYTES):
        raise BadRequest(f"scope has {len(generation.scope)} bytes; expected 16", param="scope")
    priority = generation.priority or "normal"
    if priority not in PRIORITIES:
        raise BadRequest(
            f"priority is {priority!r}; expected one of {', '.join(PRIORITIES)}", param="priority"
        )
    s = generation.sampling
    sampling = Sampling(
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        seed=s.seed,
        ignore_eos=s.ignore_eos,
        stop_token_ids=tuple(s.stop_token_ids),
    )
    sampling.check()
    return Generation(
        key=key_from_pb(generation.key),
        prompt=prompt,
        forced=forced,
        sampling=sampling,
        max_new=generation.max_new,
        scope=generation.scope,
        priority=priority,
        tenant=generation.tenant or "default",
    )


def row_to_pb(row: Row) -> pb.StepRow:
    return pb.StepRow(
        key=key_to_pb(row.key),
        token_ids=pack_ids(row.token_ids),
        finish=row.finish or "",
        cached_tokens=row.cached_tokens,
        stop_token=0 if row.stop_token is None else row.stop_token + 1,
    )


def row_from_pb(row: pb.StepRow) -> Row:
    return Row(
        key=key_from_pb(row.key),
        token_ids=unpack_ids(row.token_ids),
        finish=Finish(row.finish) if row.finish else None,
        cached_tokens=row.cached_tokens,
        stop_token=row.stop_token - 1 if row.stop_token else None,
    )


def chunk_to_pb(chunk: Chunk) -> pb.ChunkDone:
    return pb.ChunkDone(
        key=key_to_pb(chunk.key),
        tokens=chunk.tokens,
        last_chunk_started=chunk.last_chunk_started,
    )


def error_to_pb(key: Key, error: DiptychError) -> pb.Failed:
    return pb.Failed(
        key=key_to_pb(key),
        kind=kind_of(error),
        code=error.code,
        message=error.message,
        retryable=isinstance(error, Lost | Overloaded | Refused),
        ticket_is_gone=error.code == TICKET_GONE,
    )


def error_from_pb(failed: pb.Failed) -> DiptychError:
    return make(failed.kind, failed.code, failed.message)


def _ids(field: str, packed: bytes) -> tuple[int, ...]:
    try:
        return unpack_ids(packed)
    except ValueError as error:
        raise BadRequest(
            f"{field} has {len(packed)} bytes; expected 4 an id", param=field
        ) from error
