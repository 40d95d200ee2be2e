"""instructor: typed answers by tools and by schema."""

import instructor
import openai
from checks import ANSWER, KEY, MODEL, QUESTION, URL, main
from instructor import Mode
from pydantic import BaseModel, Field


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=12)
    days: int = Field(ge=1, le=9)


def ask(mode: Mode, stream: bool = False) -> object:
    plain = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    client = instructor.from_openai(plain, mode=mode)
    create = client.chat.completions.create_partial if stream else client.chat.completions.create
    return create(
        model=MODEL,
        response_model=Weather,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=1500,
        max_retries=0,
        seed=7,
        extra_body=ANSWER,
    )


def check_a_forced_tool() -> None:
    assert isinstance(ask(Mode.TOOLS), Weather)


def check_a_strict_tool() -> None:
    assert isinstance(ask(Mode.TOOLS_STRICT), Weather)


def check_a_json_schema() -> None:
    assert isinstance(ask(Mode.JSON_SCHEMA), Weather)


def check_a_streamed_object_grows_until_it_is_whole() -> None:
    *_, last = ask(Mode.TOOLS, stream=True)  # type: ignore[misc]
    assert Weather.model_validate(last.model_dump())


if __name__ == "__main__":
    main()
