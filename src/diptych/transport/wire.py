"""Values of the domain to and from the messages of a Session."""

from diptych.contract import worker_pb2 as pb
from diptych.core.blocks import HASH_BYTES, pack_ids, unpack_ids
from diptych.core.constraint import Constraint, Kind
from diptych.core.errors import (
    NOT_FETCHED,
    TICKET_GONE,
    BadRequest,
    DiptychError,
    Lost,
    Overloaded,
    Refused,
)
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import PRIORITIES, RETENTIONS, Generation
from diptych.core.sampling import Budget, Sampling
from diptych.core.step import Chunk, Logprob, Row
from diptych.transport.errors import kind_of, make


def key_to_pb(key: Key) -> pb.RequestKey:
    return pb.RequestKey(request_id=key.request_id, attempt=key.attempt)


def key_from_pb(key: pb.RequestKey) -> Key:
    return Key(key.request_id, key.attempt)


def generation_to_pb(generation: Generation) -> pb.Generation:
    return pb.Generation(
        key=key_to_pb(generation.key),
        prompt=pack_ids(generation.prompt),
        forced=pack_ids(generation.forced),
        prompt_len=len(generation.prompt),
        max_new=generation.max_new,
        sampling=sampling_to_pb(generation.sampling),
        scope=generation.scope,
        priority=generation.priority,
        tenant=generation.tenant,
        constraint=_constraint_to_pb(generation),
        retention=generation.retention,
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
    retention = generation.retention or "chat"
    if retention not in RETENTIONS:
        raise BadRequest(
            f"retention is {retention!r}; expected one of {', '.join(RETENTIONS)}",
            param="retention",
        )
    has_constraint = generation.HasField("constraint")
    return Generation(
        key=key_from_pb(generation.key),
        prompt=prompt,
        forced=forced,
        sampling=sampling_from_pb(generation.sampling),
        max_new=generation.max_new,
        scope=generation.scope,
        priority=priority,
        tenant=generation.tenant or "default",
        constraint=_constraint_from_pb(generation.constraint) if has_constraint else None,
        constraint_after=generation.constraint.after,
        retention=retention,
    )


def sampling_to_pb(s: Sampling) -> pb.Sampling:
    return pb.Sampling(
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        seed=s.seed,
        ignore_eos=s.ignore_eos,
        stop_token_ids=s.stop_token_ids,
        biased_ids=pack_ids([token for token, _ in s.logit_bias]),
        biases=[value for _, value in s.logit_bias],
        repetition_penalty=s.repetition_penalty,
        frequency_penalty=s.frequency_penalty,
        presence_penalty=s.presence_penalty,
        min_tokens=s.min_tokens,
        bad_words=map(pack_ids, s.bad_words),
        allowed_token_ids=pack_ids(s.allowed_token_ids),
        logprobs=0 if s.logprobs is None else s.logprobs + 1,
        prompt_logprobs=0 if s.prompt_logprobs is None else s.prompt_logprobs + 1,
        thinking_budget=s.thinking.num_tokens if s.thinking else None,
        thinking_ends=pack_ids(s.thinking.ends) if s.thinking else b"",
    )


def sampling_from_pb(s: pb.Sampling) -> Sampling:
    """Read and check sampling parameters."""
    biased = _ids("logit_bias", s.biased_ids)
    if len(biased) != len(s.biases):
        raise BadRequest(f"{len(biased)} tokens have {len(s.biases)} biases", param="logit_bias")
    sampling = Sampling(
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        seed=s.seed,
        ignore_eos=s.ignore_eos,
        stop_token_ids=tuple(s.stop_token_ids),
        logit_bias=tuple(zip(biased, s.biases, strict=True)),
        repetition_penalty=s.repetition_penalty or 1.0,
        frequency_penalty=s.frequency_penalty,
        presence_penalty=s.presence_penalty,
        min_tokens=s.min_tokens,
        bad_words=tuple(_ids("bad_words", word) for word in s.bad_words),
        allowed_token_ids=_ids("allowed_token_ids", s.allowed_token_ids),
        logprobs=s.logprobs - 1 if s.logprobs else None,
        prompt_logprobs=s.prompt_logprobs - 1 if s.prompt_logprobs else None,
        thinking=_budget_from_pb(s),
    )
    sampling.check()
    return sampling


def _budget_from_pb(s: pb.Sampling) -> Budget | None:
    if not s.HasField("thinking_budget"):
        return None
    return Budget(s.thinking_budget, _ids("thinking_token_budget", s.thinking_ends))


def _constraint_to_pb(generation: Generation) -> pb.Constraint | None:
    constraint = generation.constraint
    if constraint is None:
        return None
    return pb.Constraint(
        kind=constraint.kind,
        source=constraint.source,
        whitespace=constraint.whitespace,
        is_closed=constraint.is_closed,
        param=constraint.param,
        after=generation.constraint_after,
    )


def _constraint_from_pb(constraint: pb.Constraint) -> Constraint:
    try:
        kind = Kind(constraint.kind)
    except ValueError:
        known = ", ".join(Kind)
        message = f"the kind of constraint is {constraint.kind!r}; expected one of {known}"
        raise BadRequest(message, param="constraint") from None
    whitespace = constraint.whitespace if constraint.HasField("whitespace") else None
    return Constraint(kind, constraint.source, whitespace, constraint.is_closed, constraint.param)


def row_to_pb(row: Row) -> pb.StepRow:
    return pb.StepRow(
        key=key_to_pb(row.key),
        token_ids=pack_ids(row.token_ids),
        finish=row.finish or "",
        cached_tokens=row.cached_tokens,
        stop_token=0 if row.stop_token is None else row.stop_token + 1,
        logprobs=map(_logprob_to_pb, row.logprobs),
        prompt_logprobs=map(_logprob_to_pb, row.prompt_logprobs),
        cached_memory=row.cached_memory,
        cached_disk=row.cached_disk,
    )


def row_from_pb(row: pb.StepRow) -> Row:
    return Row(
        key=key_from_pb(row.key),
        token_ids=unpack_ids(row.token_ids),
        finish=Finish(row.finish) if row.finish else None,
        cached_tokens=row.cached_tokens,
        stop_token=row.stop_token - 1 if row.stop_token else None,
        logprobs=tuple(map(_logprob_from_pb, row.logprobs)),
        prompt_logprobs=tuple(map(_logprob_from_pb, row.prompt_logprobs)),
        cached_memory=row.cached_memory,
        cached_disk=row.cached_disk,
    )


def _logprob_to_pb(logprob: Logprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        logprob=logprob.value,
        rank=logprob.rank,
        top_ids=pack_ids([token for token, _ in logprob.top]),
        top_logprobs=[value for _, value in logprob.top],
    )


def _logprob_from_pb(logprob: pb.TokenLogprob) -> Logprob:
    top = zip(unpack_ids(logprob.top_ids), logprob.top_logprobs, strict=True)
    return Logprob(logprob.logprob, logprob.rank, tuple(top))


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
        param=error.param or "",
        retryable=isinstance(error, Lost | Overloaded | Refused),
        ticket_is_gone=error.code in (TICKET_GONE, NOT_FETCHED),
    )


def error_from_pb(failed: pb.Failed) -> DiptychError:
    return make(failed.kind, failed.code, failed.message, param=failed.param or None)


def _ids(field: str, packed: bytes) -> tuple[int, ...]:
    try:
        return unpack_ids(packed)
    except ValueError as error:
        raise BadRequest(
            f"{field} has {len(packed)} bytes; expected 4 an id", param=field
        ) from error
