"""A request that was checked and encoded: what to generate, and how to show it."""

from dataclasses import dataclass, replace
from typing import Any

from diptych.core.constraint import Kind
from diptych.core.errors import BadRequest
from diptych.core.ids import Key
from diptych.core.request import PRIORITIES, Generation
from diptych.core.sampling import choice_seed
from diptych.gateway.api import ChatRequest, read_chat
from diptych.gateway.constraint import constraint_of, opens_calls, schema_of
from diptych.gateway.limits import output_limit, refuse_hopeless, refuse_many_logprobs
from diptych.gateway.logprobs import Logprobs, PromptLogprobs
from diptych.gateway.pipeline import Call
from diptych.gateway.served import Prompt, Served
from diptych.gateway.shapes import Shapes
from diptych.gateway.tenancy.visit import Visit
from diptych.text.chat import Chat, render
from diptych.text.markers import Marker
from diptych.text.opening import Opening, opening_of
from diptych.text.parser import Parser


@dataclass(frozen=True, slots=True)
class Ask:
    """One call for each choice."""

    request: ChatRequest
    calls: tuple[Call, ...]
    shapes: Shapes
    opening: Opening
    ignored: tuple[str, ...]  # fields that nobody knows

    @property
    def headers(self) -> dict[str, str]:
        """Names the ignored fields, so that a typing error can be found."""
        names = [name for name in self.ignored if name.isascii() and name.isprintable()]
        return {"x-ignored-params": ", ".join(names[:10])[:512]} if names else {}


async def read(body: dict[str, Any], visit: Visit, served: Served) -> Ask:
    """Check, render, tokenise, and see that it fits. No engine has been bothered yet."""
    request, ignored = read_chat(body)
    served.check_model(request.model)
    visit.choose(request.model)
    bad_words = await served.bad_words(request.bad_words)
    sampling = replace(served.sampling(request), bad_words=bad_words)
    sampling.check()
    sampling.check_ids(served.tokenizer.vocab_size)
    constraint = constraint_of(request)
    if constraint is not None:
        await served.check_constraint(constraint)
    identity = served.identity()
    context, effort, asked = identity.max_model_len, request.effort, request.output_limit
    messages = tuple(message.read() for message in request.messages)
    chat = Chat(
        messages,
        effort,
        tools=request.calling.shown,
        schema=schema_of(request),
        opens_calls=opens_calls(request),
    )
    segments = render(chat)
    num_bytes = sum(len(segment.encode()) for segment in segments if isinstance(segment, str))
    refuse_hopeless(num_bytes, served.tokenizer.longest_token_bytes, asked, context)
    prompt = await served.encode(
        segments, identity, visit.caller.tenant, request.user_id, request.cache_salt
    )
    prompt_len = len(prompt.token_ids)
    max_new = output_limit(prompt_len, asked, effort, context)
    max_new = visit.output_limit(prompt_len, asked, max_new)
    if sampling.min_tokens > max_new:
        message = f"min_tokens is more than the {max_new} tokens that the output may have"
        raise BadRequest(message, code="conflicting_parameters", param="min_tokens")
    if request.prompt_logprobs is not None:
        refuse_many_logprobs(prompt_len, request.prompt_logprobs, request.n)
    first = Generation(
        key=Key(visit.request_id, 1),
        prompt=prompt.token_ids,
        sampling=sampling,
        max_new=max_new,
        scope=prompt.scope,
        priority=wished if (wished := visit.caller.priority_class) in PRIORITIES else "normal",
        tenant=visit.caller.tenant,
        constraint=constraint,
        constraint_after=Marker.END_THINK.value if constraint and effort is not None else "",
    )
    calls = tuple(_choice(first, index, prompt, visit) for index in range(request.n))
    shapes = _shapes(request, served, identity.fingerprint, prompt.token_ids)
    return Ask(request, calls, shapes, opening_of(segments), tuple(ignored))


def parser_of(ask: Ask, served: Served) -> Parser:
    """Reads one choice's output."""
    constraint = ask.calls[0].generation.constraint
    return Parser(
        served.tokenizer,
        ask.opening,
        tools=ask.request.calling.shown,
        parallel=ask.request.parallel_tool_calls,
        trusted=constraint is not None and constraint.kind is Kind.TOOL_CALLS,
        stops=ask.request.stop or (),
        ignore_eos=ask.request.ignore_eos,
        min_tokens=ask.request.min_tokens,
    )


def _choice(first: Generation, index: int, prompt: Prompt, visit: Visit) -> Call:
    key, seed = first.key, choice_seed(first.sampling.seed, index)
    if index:
        key = replace(key, request_id=f"{key.request_id}.{index}")
    generation = replace(first, key=key, sampling=replace(first.sampling, seed=seed))
    is_cached = generation.sampling.prompt_logprobs is None  # else every row is computed
    hashes = prompt.hashes if is_cached else ()
    return Call(generation, hashes, visit.caller.tenant, visit.caller.priority_class)


def _shapes(
    request: ChatRequest, served: Served, fingerprint: str, prompt: tuple[int, ...]
) -> Shapes:
    options, asks_for_prompt = request.stream_options, request.prompt_logprobs is not None
    return Shapes(
        model=served.model_name,
        fingerprint=fingerprint,
        prompt_tokens=len(prompt),
        has_reasoning=request.effort is not None and request.include_reasoning,
        has_usage=bool(options and options.include_usage),
        has_running_usage=bool(options and options.continuous_usage_stats),
        has_token_ids=request.return_token_ids,
        logprobs=Logprobs(served.tokenizer) if request.logprobs else None,
        prompt_logprobs=PromptLogprobs(served.tokenizer, prompt) if asks_for_prompt else None,
    )
