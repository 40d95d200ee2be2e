"""langchain-openai's chat model."""

from typing import Any

from checks import ANSWER, KEY, MODEL, QUESTION, SCHEMA, TOOL, URL, main
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=12)
    days: int = Field(ge=1, le=9)


def model(**fields: Any) -> ChatOpenAI:
    wish = {"max_tokens": 1500, "seed": 1, "extra_body": ANSWER, "max_retries": 0, **fields}
    return ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, stream_usage=True, **wish)


def check_a_whole_answer_has_text_and_usage() -> None:
    reply = model().invoke(QUESTION)
    assert reply.usage_metadata is not None
    assert reply.usage_metadata["output_tokens"] > 0
    assert reply.response_metadata["finish_reason"] in ("stop", "length")


def check_a_stream_is_the_whole_answer() -> None:
    whole = model().invoke(QUESTION)
    gathered: AIMessageChunk | None = None
    for chunk in model().stream(QUESTION):
        gathered = chunk if gathered is None else gathered + chunk
    assert gathered is not None
    assert gathered.content == whole.content
    assert gathered.usage_metadata == whole.usage_metadata


def check_tools_are_called_and_their_results_answered() -> None:
    able = model().bind_tools([TOOL], tool_choice="required")
    asked = [HumanMessage(QUESTION)]
    reply = able.invoke(asked)
    call = reply.tool_calls[0]
    assert call["name"] == "get_weather" and call["args"].keys() == {"city", "days"}
    results = [ToolMessage("18 degrees", tool_call_id=c["id"]) for c in reply.tool_calls]
    again = model().bind_tools([TOOL]).invoke([*asked, reply, *results])
    assert again.response_metadata["finish_reason"] in ("stop", "length", "tool_calls")


def check_tool_calls_are_streamed() -> None:
    gathered: AIMessageChunk | None = None
    for chunk in model().bind_tools([TOOL], tool_choice="get_weather").stream(QUESTION):
        gathered = chunk if gathered is None else gathered + chunk
    assert gathered is not None
    (call,) = gathered.tool_calls
    assert call["args"].keys() == {"city", "days"}


def check_structured_output_in_every_way() -> None:
    for method in ("json_schema", "function_calling"):
        found = model().with_structured_output(Weather, method=method).invoke(QUESTION)
        assert isinstance(found, Weather), method
    raw = model().with_structured_output({"title": "w", **SCHEMA}, method="json_schema")
    assert raw.invoke(QUESTION).keys() == {"city", "days"}


if __name__ == "__main__":
    main()
