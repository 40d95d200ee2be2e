"""A completion made ready to run: its prompts, calls, and the readers of what comes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diptych.core.constraint import Constraint
from diptych.core.errors import BadRequest
from diptych.gateway.answer import Answer
from diptych.gateway.aside import aside
from diptych.gateway.completions.request import CompletionRequest, Written
from diptych.gateway.constraint import conflict, constraining_field, text_constraint
from diptych.gateway.generation import ALL_THAT_FIT
from diptych.gateway.limits import length_of, refuse_hopeless, refuse_many_logprobs
from diptych.gateway.pipeline import Call
from diptych.gateway.served import Identity, Served
from diptych.gateway.served import Prompt as Encoded
from diptych.gateway.tenancy.visit import Visit
from diptych.gateway.vocabulary import check_ids
from diptych.gateway.wish import Wish, calls_of, room_for, sampling_of
from diptych.text.completion import fill, raw
from diptych.text.markers import Marker, Segment
from diptych.text.opening import Opening
from diptych.text.parser import Parser

DEFAULT_OUTPUT = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """As the engine gets it, and how many of its first tokens the client never wrote."""

    token_ids: tuple[int, ...]
    num_inserted: int

    @property
    def echoed(self) -> tuple[int, ...]:
        """What the client wrote."""
        return self.token_ids[self.num_inserted :]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One call and one answer for each choice; those of a prompt stand together."""

    calls: tuple[Call, ...]
    answers: tuple[Answer, ...]
    prompts: tuple[Prompt, ...]
    fingerprint: str


async def prepare(request: CompletionRequest, visit: Visit, served: Served) -> Prepared:
    """Check, tokenise, and see that it fits. No engine has been bothered yet."""
    visit.choose(served.check_model(request.model))
    sampling = replace(await sampling_of(request, served), prompt_logprobs=request.prompt_top)
    constraint = constraint_of(request)
    if constraint is not None:
        await served.check_constraint(constraint)
    identity = served.identity()
    with length_of("prompt"):
        prompts, encoded = await _encode(request, visit, served, identity)
        # The engine gives a prompt's log-probabilities with its first token. So there is one even
        # where max_tokens is 0; the answer then neither shows nor counts it.
        asked = 1 if request.is_scored_only else request.max_tokens
        clips = served.policy.clip_explicit_max_tokens
        rooms = [
            room_for(request, each, asked, DEFAULT_OUTPUT, visit, identity, clips=clips)
            for each in encoded
        ]
    _refuse_many_scores(request, prompts)
    calls: list[Call] = []
    for each, max_new in zip(encoded, rooms, strict=True):
        wish = Wish(each, sampling, max_new, constraint, deferred=request.priority)
        calls += calls_of(wish, request.n, visit, first=len(calls))
    return Prepared(
        calls=tuple(calls),
        answers=tuple(
            Answer(index, _parser(request, served), is_scored_only=request.is_scored_only)
            for index in range(len(calls))
        ),
        prompts=prompts,
        fingerprint=identity.fingerprint,
    )


def constraint_of(request: CompletionRequest) -> Constraint | None:
    """What the text must be, not yet checked whether it can be enforced; None if it is free."""
    field = constraining_field(request)
    if field is None:
        return None
    if request.ignore_eos:
        raise conflict(f"a text with {field} ends when it is complete", "ignore_eos")
    return text_constraint(request, field)


def segments_of(written: Written, request: CompletionRequest, served: Served) -> Sequence[Segment]:
    """The prompt that goes with it; token ids stay as they are."""
    if not isinstance(written, str):
        return written
    if request.suffix is not None:
        return fill(written, request.suffix)
    special = served.policy.allow_raw_special
    return raw(written, served.tokenizer, bos=request.add_special_tokens, special=special)


def _prompts(request: CompletionRequest, served: Served) -> list[Sequence[Segment]]:
    for written in request.prompt:
        if not isinstance(written, str):
            check_ids(written, served.tokenizer.vocab_size, "prompt")
    return [segments_of(written, request, served) for written in request.prompt]


async def _encode(
    request: CompletionRequest, visit: Visit, served: Served, identity: Identity
) -> tuple[tuple[Prompt, ...], list[Encoded]]:
    if request.suffix is not None and served.tokenizer.find(Marker.FIM_HOLE) is None:
        message = "suffix: this model was not made to fill holes"
        raise BadRequest(message, code="unsupported_parameter", param="suffix")
    prompts = await aside(lambda: _prompts(request, served), visit.size_bytes)
    kept = request.truncate_prompt_tokens
    if kept is None:
        for prompt in prompts:
            _refuse_hopeless(prompt, request, served, identity)
    elif kept == ALL_THAT_FIT:
        kept = max(1, identity.max_model_len - (request.max_tokens or 1))
    tenant, user = visit.caller.tenant, request.user_id
    encoded = await served.encode_all(prompts, identity, tenant, user, request.cache_salt, kept)
    if not all(each.token_ids for each in encoded):
        raise BadRequest("prompt: expected at least one token", param="prompt")
    bos = served.tokenizer.find(Marker.BOS)
    inserted = [
        prompt[0] is Marker.BOS and each.token_ids[0] == bos  # it may have been cut off again
        for prompt, each in zip(prompts, encoded, strict=True)
    ]
    found = zip(encoded, inserted, strict=True)
    return tuple(Prompt(each.token_ids, int(is_first)) for each, is_first in found), encoded


def _refuse_hopeless(
    prompt: Sequence[Segment], request: CompletionRequest, served: Served, identity: Identity
) -> None:
    """Of a text its bytes say how many tokens there are at least; of ids the number is known."""
    texts = [segment.encode() for segment in prompt if isinstance(segment, str)]
    longest = served.tokenizer.longest_token_bytes
    num_ids = len(prompt) - len(texts)
    num_bytes = sum(map(len, texts)) + num_ids * longest
    refuse_hopeless(num_bytes, longest, request.max_tokens, identity.max_model_len)


def _refuse_many_scores(request: CompletionRequest, prompts: Sequence[Prompt]) -> None:
    if request.prompt_top is not None:
        field = "prompt_logprobs" if request.prompt_logprobs is not None else "logprobs"
        total = sum(len(prompt.token_ids) for prompt in prompts)
        refuse_many_logprobs(total, request.prompt_top, request.n, field)


def _parser(request: CompletionRequest, served: Served) -> Parser:
    return Parser(
        served.tokenizer,
        Opening.PLAIN,
        stops=request.stop or (),
        keep_stop=request.include_stop_str_in_output,
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        special=not request.skip_special_tokens,
        placed=request.logprobs is not None,
    )
