"""Values cross the wire as they are; nonsense is refused with its field."""

from dataclasses import replace

import pytest

from diptych.contract import worker_pb2 as pb
from diptych.core.constraint import Constraint, Kind
from diptych.core.errors import TICKET_GONE, BadRequest, Lost, Overloaded
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.sampling import Budget, Sampling
from diptych.core.step import Logprob, Row
from diptych.transport.wire import (
    error_from_pb,
    error_to_pb,
    generation_from_pb,
    generation_to_pb,
    row_from_pb,
    row_to_pb,
)

KEY = Key("request-1", 3)
GENERATION = Generation(
    KEY,
    prompt=(0, 1, 2**32 - 1),
    forced=(7, 8),
    sampling=Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=2**64 - 1,
        ignore_eos=True,
        stop_token_ids=(3, 4),
        logit_bias=((9, -0.1), (2, 100.0)),
        repetition_penalty=1.1,
        frequency_penalty=-0.3,
        presence_penalty=0.7,
        min_tokens=5,
        bad_words=((1,), (2, 3)),
        allowed_token_ids=(7, 6),
        logprobs=0,
        prompt_logprobs=3,
        thinking=Budget(0, (11, 12)),
    ),
    max_new=9,
    scope=bytes(range(16)),
    priority="interactive",
    tenant="acme",
    constraint=Constraint(Kind.REGEX, "ä+", "", True, "structured_outputs.regex"),
    constraint_after="</think>",
)


def test_a_generation_crosses_as_it_is() -> None:
    sent = pb.Generation.FromString(generation_to_pb(GENERATION).SerializeToString())
    assert generation_from_pb(sent) == GENERATION


def test_nothing_asked_crosses_as_nothing_asked() -> None:
    plain = Generation(KEY, prompt=(1,), sampling=Sampling(), max_new=1)
    assert generation_from_pb(generation_to_pb(plain)) == plain


def test_no_repetition_penalty_is_said_like_1() -> None:
    sent = generation_to_pb(GENERATION)
    sent.sampling.ClearField("repetition_penalty")
    assert generation_from_pb(sent).sampling.repetition_penalty == 1


def test_a_constraint_keeps_what_white_space_it_has_or_has_not() -> None:
    for whitespace in (None, "", " ?"):
        constraint = Constraint(Kind.JSON_SCHEMA, "{}", whitespace)
        sent = generation_to_pb(replace(GENERATION, constraint=constraint))
        assert generation_from_pb(sent).constraint == constraint


def test_a_kind_of_constraint_that_does_not_exist_is_refused() -> None:
    sent = generation_to_pb(GENERATION)
    sent.constraint.kind = "poem"
    with pytest.raises(BadRequest, match="'poem'; expected one of json_schema, json_object"):
        generation_from_pb(sent)


def test_biases_without_tokens_are_refused() -> None:
    sent = generation_to_pb(GENERATION)
    sent.sampling.biases.append(1.0)
    with pytest.raises(BadRequest, match="2 tokens have 3 biases"):
        generation_from_pb(sent)


def test_a_generation_without_class_and_tenant_has_the_usual_ones() -> None:
    sent = generation_to_pb(GENERATION)
    sent.ClearField("priority")
    sent.ClearField("tenant")
    read = generation_from_pb(sent)
    assert (read.priority, read.tenant) == ("normal", "default")


def test_a_class_that_does_not_exist_is_refused() -> None:
    sent = generation_to_pb(GENERATION)
    sent.priority = "urgent"
    with pytest.raises(BadRequest, match="priority is 'urgent'; expected one of interactive"):
        generation_from_pb(sent)


@pytest.mark.parametrize(
    "row",
    [
        Row(KEY, (1, 2, 3), cached_tokens=128),
        Row(KEY, (5,), Finish.STOP, stop_token=0),
        Row(KEY, (), Finish.LENGTH),
        Row(
            KEY,
            (1, 2),
            logprobs=(Logprob(-0.1, 1, ((4, -0.1), (2**31, -7.25))), Logprob(-1e4 / 3, 2**31)),
            prompt_logprobs=(Logprob(-0.2, 3), Logprob(-0.3, 1, ((5, -0.3),))),
        ),
    ],
    ids=["goes on", "stop token 0", "no tokens", "log-probabilities"],
)
def test_a_row_crosses_as_it_is(row: Row) -> None:
    assert row_from_pb(pb.StepRow.FromString(row_to_pb(row).SerializeToString())) == row


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("prompt", b"12345", "prompt"),
        ("prompt", b"", "prompt_len"),
        ("prompt_len", 4, "prompt_len"),
        ("forced", b"1", "forced"),
        ("max_new", 2, "max_new"),
        ("scope", b"short", "scope"),
    ],
)
def test_a_field_that_cannot_be_is_named(field: str, value: object, param: str) -> None:
    message = generation_to_pb(GENERATION)
    setattr(message, field, value)
    with pytest.raises(BadRequest) as caught:
        generation_from_pb(message)
    assert caught.value.param == param


def test_sampling_is_checked_on_arrival() -> None:
    wild = replace(GENERATION, sampling=replace(GENERATION.sampling, temperature=3.0))
    with pytest.raises(BadRequest) as caught:
        generation_from_pb(generation_to_pb(wild))
    assert caught.value.param == "temperature"


def test_a_failure_says_whether_to_retry_and_whether_the_ticket_is_gone() -> None:
    gone = error_to_pb(KEY, Lost("lost", code=TICKET_GONE))
    assert (gone.retryable, gone.ticket_is_gone) == (True, True)
    busy = error_to_pb(KEY, Overloaded("busy"))
    assert (busy.retryable, busy.ticket_is_gone) == (True, False)
    wrong = error_to_pb(KEY, BadRequest("wrong", param="messages"))
    assert (wrong.retryable, wrong.ticket_is_gone) == (False, False)
    assert error_from_pb(wrong).param == "messages"
    back = error_from_pb(gone)
    assert (type(back), back.code, back.message) == (Lost, TICKET_GONE, "lost")
    assert back.param is None
