"""Quick instructions, as a client names them."""

from typing import Annotated, Literal

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from diptych.text.chat import Task


def _task(value: object) -> Task:
    names = [task.name.lower() for task in Task]
    if not isinstance(value, str) or value not in names:
        raise PydanticCustomError("invalid_value", f"expected one of {', '.join(names)}")
    return Task[value.upper()]


Name = Literal["action", "query", "authority", "domain", "title", "read_url"]
TaskName = Annotated[Task, PlainValidator(_task, json_schema_input_type=Name)]
