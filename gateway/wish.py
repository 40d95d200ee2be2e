"""One prompt and what shall follow it, whatever API asked: the same checks, the same calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diptych.core.constraint import Constraint
from diptych.core.errors import BadRequest
from diptych.core.ids import Key
from diptych.core.request import PRIORITIES, Generation
from diptych.core.sampling import Sampling, choice_seed
from diptych.gateway.generation import ALL_THAT_FIT, GenerationRequest
from diptych.gateway.limits import output_limit, refuse_hopeless, refuse_many_logprobs
from diptych.gateway.pipeline import Call
from diptych.gateway.served import Identity, Prompt, Served
from diptych.gateway.tenancy.visit import Visit
from diptych.text.markers import Segment


@dataclass(frozen=True, slots=True)
class Wish:
    """What to generate. `constraint_after`: the marker behind which the constraint begins."""

    prompt: Prompt
    sampling: Sampling
    max_new: int
    constraint: Constraint | None = None
    constraint_after: str = ""
    deferred: int = 0  # classes less urgent than the caller's


async def sampling_of(request: GenerationRequest, served: Served) -> Sampling:
    """The request's parameters over the checkpoint's, checked."""
    bad_words = await served.bad_words(request.bad_words)
    sampling = replace(served.sampling(request), bad_words=bad_words)
    sampling.check()
    sampling.check_ids(served.tokenizer.vocab_size)
    return sampling


async def encode(
    segments: Sequence[Segment],
    request: GenerationRequest,
    asked: int | None,
    visit: Visit,
    served: Served,
) -> Prompt:
    """Tokenise and hash, unless it is too long however it is tokenised."""
    identity = served.identity()
    kept = request.truncate_prompt_tokens
    if kept is None:
        num_bytes = sum(len(segment.encode()) for segment in segments if isinstance(segment, str))
        longest = served.tokenizer.longest_token_bytes
        refuse_hopeless(num_bytes, longest, asked, identity.max_model_len)
    elif kept == ALL_THAT_FIT:
        kept = max(1, identity.max_model_len - (asked or 1))
    tenant, user = visit.caller.tenant, request.user_id
    with visit.notes.tokenized():
        return await served.encode(segments, identity, tenant, user, request.cache_salt, kept)


def room_for(
    request: GenerationRequest,
    prompt: Prompt,
    asked: int | None,
    default: int,
    visit: Visit,
    identity: Identity,
    *,
    clips: bool = False,
) -> int:
    """Tokens that an output may have: what was `asked` for, or as much of the default as fits."""
    prompt_len = len(prompt.token_ids)
    max_new = output_limit(prompt_len, asked, default, identity.max_model_len, clips=clips)
    max_new = visit.output_limit(prompt_len, asked, max_new)
    if request.min_tokens > max_new:
        message = f"min_tokens is more than the {max_new} tokens that the output may have"
        raise BadRequest(message, code="conflicting_parameters", param="min_tokens")
    if request.prompt_logprobs is not None:
        refuse_many_logprobs(prompt_len, request.prompt_logprobs, request.n)
    return max_new


def calls_of(wish: Wish, num_choices: int, visit: Visit, first: int = 0) -> tuple[Call, ...]:
    """One for each choice; `first`: choices that earlier prompts of the request have."""
    priority = _priority(visit.caller.priority_class, wish.deferred)
    generation = Generation(
        key=Key(visit.request_id, 1),
        prompt=wish.prompt.token_ids,
        sampling=wish.sampling,
        max_new=wish.max_new,
        scope=wish.prompt.scope,
        priority=priority,
        tenant=visit.caller.tenant,
        retention=visit.caller.retention,
        constraint=wish.constraint,
        constraint_after=wish.constraint_after if wish.constraint else "",
    )
    own = visit.caller.priority_class  # the router may know more of them than engines do
    queue = priority if wish.deferred > 0 else own
    return tuple(
        _choice(generation, index, first + index, wish.prompt, queue)
        for index in range(num_choices)
    )


def _priority(own: str, deferred: int) -> str:
    """A class that is no more urgent than the caller's own."""
    index = PRIORITIES.index(own if own in PRIORITIES else "normal")
    return PRIORITIES[min(index + max(0, deferred), len(PRIORITIES) - 1)]


def _choice(first: Generation, index: int, number: int, prompt: Prompt, queue: str) -> Call:
    key, seed = first.key, choice_seed(first.sampling.seed, index)
    if number:
        key = replace(key, request_id=f"{key.request_id}.{number}")
    generation = replace(first, key=key, sampling=replace(first.sampling, seed=seed))
    is_cached = generation.sampling.prompt_logprobs is None  # else every row is computed
    hashes = prompt.hashes if is_cached else ()
    return Call(generation, hashes, generation.tenant, queue)
