"""Items as the messages of a chat, and where each of them came from.

What the assistant did in a row is one turn: reasoning, then texts, then calls. Reasoning after a
text begins the next turn; calls keep a turn open until their results.
"""

from collections.abc import Sequence
from typing import Any

from diptych.gateway.responses.items import (
    CallItem,
    Item,
    MessageItem,
    ReasoningItem,
    ResultItem,
)
from diptych.gateway.responses.tools import joined


class Conversation:
    """Chat messages under way; `paths` tells what they are in the request."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.paths: dict[str, str] = {}
        self._turn: dict[str, Any] | None = None  # the assistant's, as long as it may go on

    def say(self, role: str, text: str, path: str) -> None:
        """A message that is no item."""
        self._add({"role": role, "content": text}, path)

    def follow(self, items: Sequence[Item]) -> None:
        """All items, in order."""
        for index, item in enumerate(items):
            path = f"input[{index}]"
            match item:
                case MessageItem(role="assistant"):
                    self._answer(item, path)
                case MessageItem():
                    self._say(item, path)
                case ReasoningItem():
                    self._reason(item, path)
                case CallItem():
                    self._call(item, path)
                case ResultItem():
                    self._result(item, path)

    def _say(self, item: MessageItem, path: str) -> None:
        role = "user" if item.role == "user" else "system"
        self._add({"role": role, "content": _content(item.content)}, path)

    def _answer(self, item: MessageItem, path: str) -> None:
        turn, name = self._assistant(path)
        content = _content(item.content)
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for index, part in enumerate(parts):
            self.paths[f"{name}.content[{len(turn['content'])}]"] = f"{path}.content[{index}]"
            turn["content"].append(part)

    def _reason(self, item: ReasoningItem, path: str) -> None:
        if self._turn is not None and self._turn["content"] and not self._turn["tool_calls"]:
            self._turn = None
        turn, _ = self._assistant(path)
        texts = [part.text for part in item.content or ()]
        if "reasoning_content" in turn:
            texts.insert(0, turn["reasoning_content"])
        turn["reasoning_content"] = "\n".join(texts)

    def _call(self, item: CallItem, path: str) -> None:
        turn, name = self._assistant(path)
        calls = f"{name}.tool_calls"
        self.paths.setdefault(calls, path)
        self.paths[f"{calls}[{len(turn['tool_calls'])}]"] = path
        self.paths[f"{calls}[{len(turn['tool_calls'])}].id"] = f"{path}.call_id"
        function = {"name": joined(item.namespace, item.name), "arguments": item.arguments}
        turn["tool_calls"].append({"id": item.call_id, "function": function})

    def _result(self, item: ResultItem, path: str) -> None:
        output = _content(item.output)
        name = self._add({"role": "tool", "tool_call_id": item.call_id, "content": output}, path)
        self.paths[f"{name}.tool_call_id"] = f"{path}.call_id"
        self.paths[f"{name}.content"] = f"{path}.output"

    def _assistant(self, path: str) -> tuple[dict[str, Any], str]:
        """The assistant's turn that goes on or begins, and its path in the chat."""
        if self._turn is None:
            turn: dict[str, Any] = {"role": "assistant", "content": [], "tool_calls": []}
            self._add(turn, path)
            self._turn = turn
        return self._turn, f"messages[{len(self.messages) - 1}]"

    def _add(self, message: dict[str, Any], path: str) -> str:
        name = f"messages[{len(self.messages)}]"
        self.messages.append(message)
        self.paths[name] = path
        self._turn = None
        return name


def _content(content: Any) -> Any:
    """Of an item, as chats have it."""
    return content if isinstance(content, str) else [part.as_chat() for part in content]
