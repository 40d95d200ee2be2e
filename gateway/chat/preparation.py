"""A chat request made ready to run: prompt, calls, and the readers of what comes."""

from dataclasses import dataclass

from diptych.core.constraint import Constraint, Kind
from diptych.gateway.answer import Answer
from diptych.gateway.chat.constraint import constraint_of, opens_calls, schema_of
from diptych.gateway.chat.request import ChatRequest
from diptych.gateway.limits import default_output
from diptych.gateway.pipeline import Call
from diptych.gateway.served import Served
from diptych.gateway.tenancy.visit import Visit
from diptych.gateway.wish import Wish, calls_of, encode, room_for, sampling_of
from diptych.text.chat import Chat, render
from diptych.text.markers import Marker
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
    served.check_model(request.model)
    visit.choose(request.model)
    sampling = await sampling_of(request, served)
    constraint = constraint_of(request)
    if constraint is not None:
        await served.check_constraint(constraint)
    identity = served.identity()
    segments = render(chat_of(request))
    asked = request.output_limit
    prompt = await encode(segments, request, asked, visit, served)
    default = default_output(request.effort)
    max_new = room_for(request, prompt, asked, default, visit, identity)
    after = Marker.END_THINK.value if request.effort is not None else ""
    wish = Wish(prompt, sampling, max_new, constraint, after)
    opening = opening_of(segments)
    return Prepared(
        calls=calls_of(wish, request.n, visit),
        answers=tuple(
            Answer(index, _parser(request, opening, constraint, served))
            for index in range(request.n)
        ),
        prompt=prompt.token_ids,
        fingerprint=identity.fingerprint,
    )


def chat_of(request: ChatRequest) -> Chat:
    """The conversation as the model is told it."""
    return Chat(
        tuple(message.read() for message in request.messages),
        request.effort,
        tools=request.calling.shown,
        schema=schema_of(request),
        opens_calls=opens_calls(request),
    )


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
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
    )
