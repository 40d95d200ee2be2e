"""What a chat request demands of its answer, and what the prompt says of it."""

from diptych.core.constraint import Constraint
from diptych.gateway.chat.request import ChatRequest
from diptych.gateway.constraint import conflict, constraining_field, text_constraint


def constraint_of(request: ChatRequest) -> Constraint | None:
    """The constraint, not yet checked whether it can be enforced; None if the answer is free.

    With tools: a call of one of them, or what else the answer may be.
    """
    named = constraining_field(request)
    answer = text_constraint(request, named) if named else None
    found = request.calling.constrained(answer, is_opened=opens_calls(request))
    if found is None:
        return None
    field = named or ("tool_choice" if request.calling.is_forced else "tools")
    if request.ignore_eos:
        raise conflict(f"an answer with {field} ends when it is complete", "ignore_eos")
    if request.is_continued:
        raise conflict(f"{field} cannot hold for an answer that has begun", field)
    if request.instruction is not None:
        raise conflict(f"{field} cannot hold for the reply to a task", field)
    return found


def opens_calls(request: ChatRequest) -> bool:
    """Whether the prompt itself begins the block of calls."""
    return request.calling.is_forced and request.effort is None


def schema_of(request: ChatRequest) -> object:
    """The schema that the prompt states; None where the model was not trained to be told."""
    asked = request.response_format or {}
    match asked.get("type"):
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            return asked["json_schema"]["schema"]
    return None
