"""Bodies of `/tokenize` and `/detokenize`."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, PlainValidator, ValidationError

from diptych.core.errors import BadRequest
from diptych.gateway.constraint import conflict
from diptych.gateway.fields import explain, given_fields
from diptych.gateway.generation import STRICT
from diptych.gateway.vocabulary import read_ids

Body = TypeVar("Body", bound=BaseModel)

Ids = Annotated[tuple[int, ...], PlainValidator(read_ids, json_schema_input_type=list[int])]


class TextToTokens(BaseModel):
    """A raw prompt, as `/v1/completions` takes it."""

    model_config = STRICT
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class ChatToTokens(BaseModel):
    """What a chat request may have besides, which generation does not need."""

    model_config = STRICT
    model: str | None = None
    add_special_tokens: bool = True  # a chat has its own; without effect
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def has_header(self) -> bool:
        """Whether the prompt ends with what opens the answer."""
        return self.add_generation_prompt or self.continue_final_message


class TokensToText(BaseModel):
    """Ids to be spelled."""

    model_config = STRICT
    model: str | None = None
    tokens: Ids = Field()


def read_tokenize(body: Mapping[str, Any]) -> TextToTokens | ChatToTokens:
    """Which of the two it is; BadRequest names what is wrong."""
    given = given_fields(body)
    if "messages" not in given:
        return read_body(TextToTokens, given)
    if "prompt" in given:
        raise conflict("prompt and messages do not go together", "prompt")
    return read_body(ChatToTokens, given)


def read_body(kind: type[Body], body: Mapping[str, Any]) -> Body:
    """Of this kind; BadRequest names what is wrong."""
    try:
        return kind.model_validate(given_fields(body))
    except ValidationError as error:
        raise explain(error) from None


def chat_body(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The same request, were it for an answer: of `model`, if it names none."""
    given = given_fields(body)
    ours = {"add_special_tokens", "return_token_strs"}
    if not given.get("continue_final_message"):
        ours |= {"add_generation_prompt", "continue_final_message"}
    return {"model": model} | {name: value for name, value in given.items() if name not in ours}


def too_many(param: str, most: int) -> BadRequest:
    """More ids than any text has."""
    return BadRequest(f"{param}: expected at most {most} token ids", param=param)
