"""A chat request made ready to run: prompt, calls, and the readers of what comes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diptych.core.constraint import Constraint, Kind
from diptych.core.sampling import Budget
from diptych.gateway.answer import Answer
from diptych.gateway.aside import aside
from diptych.gateway.chat.constraint import constraint_of, opens_calls, schema_of
from diptych.gateway.chat.request import ChatRequest
from diptych.gateway.errors import HttpError
from diptych.gateway.images import measure
from diptych.gateway.limits import default_output
from diptych.gateway.pipeline import Call
from diptych.gateway.served import Served
from diptych.gateway.tenancy.visit import Visit
from diptych.gateway.wish import Wish, calls_of, encode, room_for, sampling_of
from diptych.text.chat import Chat, render
from diptych.text.image import Image
from diptych.text.markers import Marker, Segment
from diptych.text.opening import Opening, opening_of
from diptych.text.parser import Parser


@dataclass(frozen=True, slots=True)
class Prepared:
    """One call and one answer for each choice."""

    calls: tuple[Call, ...]
    answers: tuple[Answer, ...]
    prompt: tuple[int, ...]
    fingerprint: str


async def prepare(request: ChatRequest, visit: Visit, served: Served) -> Prepared:
    """Check, render, tokenise, and see that it fits. No engine has been bothered yet."""
    policy = served.policy
    visit.choose(served.check_model(request.model))
    asked_sampling = await sampling_of(request, served)
    sampling = policy.sampling(asked_sampling, is_thinking=request.effort is not None)
    constraint = constraint_of(request)
    if constraint is not None:
        await served.check_constraint(constraint)
    identity = served.identity()
    segments = await segments_of(request, visit.size_bytes)
    opening = opening_of(segments)
    asked = request.output_limit
    prompt = await encode(segments, request, asked, visit, served)
    default = default_output(request.effort)
    clips = policy.clip_explicit_max_tokens
    max_new = room_for(request, prompt, asked, default, visit, identity, clips=clips)
    after = Marker.END_THINK.value if request.effort is not None else ""
    budget = _budget(request, opening, constraint, served)
    sampling = replace(sampling, thinking=budget)
    wish = Wish(prompt, sampling, max_new, constraint, after, request.priority)
    _refuse_images(request)
    return Prepared(
        calls=calls_of(wish, request.n, visit),
        answers=tuple(
            Answer(
                index,
                _parser(request, opening, constraint, served),
                withholds=bool(request.stream) and not request.stream_reasoning,
            )
            for index in range(request.n)
        ),
        prompt=prompt.token_ids,
        fingerprint=identity.fingerprint,
    )


async def segments_of(request: ChatRequest, size_bytes: int = 0) -> list[Segment]:
    """The prompt, its images by their sizes; `size_bytes`: of the body that it came in."""

    def work() -> list[Segment]:
        return render(chat_of(request, measure(request.image_sources)))

    return await aside(work, size_bytes)


def chat_of(request: ChatRequest, images: Sequence[Image] = ()) -> Chat:
    """The conversation as the model is told it; `images` are all of its images, in order."""
    sizes = iter(images)
    messages = [message.read(sizes) for message in request.messages]
    if request.is_continued:
        messages[-1] = replace(messages[-1], is_prefix=True)
    return Chat(
        tuple(messages),
        request.effort,
        tools=request.calling.shown,
        schema=schema_of(request),
        opens_calls=opens_calls(request),
        task=request.instruction,
    )


def _budget(
    request: ChatRequest, opening: Opening, constraint: Constraint | None, served: Served
) -> Budget | None:
    """Of the reasoning. A call ends it, too, unless a constraint forbids calls before its end."""
    if request.thinking_token_budget is None or not opening.is_reasoning:
        return None
    markers = [Marker.END_THINK]
    if request.calling.shown and constraint is None:
        markers.append(Marker.DSML)
    ends = (served.tokenizer.find(marker) for marker in markers)
    return Budget(request.thinking_token_budget, tuple(end for end in ends if end is not None))


def _refuse_images(request: ChatRequest) -> None:
    """Their pixels would have nowhere to go."""
    if request.image_sources:
        text = "this deployment has no vision encoder: it cannot look at images"
        raise HttpError(501, "not_implemented", text, {"x-should-retry": "false"})


def _parser(
    request: ChatRequest, opening: Opening, constraint: Constraint | None, served: Served
) -> Parser:
    return Parser(
        served.tokenizer,
        opening,
        tools=request.calling.shown,
        parallel=request.parallel_tool_calls,
        trusted=constraint is not None and constraint.kind is Kind.TOOL_CALLS,
        stops=request.stop or (),
        keep_stop=request.include_stop_str_in_output,
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        special=not request.skip_special_tokens,
        merged=request.include_reasoning and not request.separate_reasoning,
        placed=request.logprobs,
    )
