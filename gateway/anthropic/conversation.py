"""Messages made of blocks as the messages of a chat, and where each of them came from.

Neighbours of one role are one turn. In a user's turn the results of calls come first, wherever
they were sent; in the assistant's, texts and reasoning are joined, and the calls come last.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from diptych.gateway.anthropic.blocks import (
    AssistantMessage,
    EmbeddedImage,
    ImageBlock,
    Message,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)

Block = TextBlock | ImageBlock | ToolResultBlock | ThinkingBlock | ToolUseBlock
Placed = tuple[str, Block]  # and where in the request it stands


class Conversation:
    """Chat messages under way; `paths` tells what they are in the request."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.paths: dict[str, str] = {}

    def system(self, content: str | Sequence[TextBlock], path: str) -> None:
        """Instructions."""
        texts = content if isinstance(content, str) else [_part(block) for block in content]
        self._add({"role": "system", "content": texts}, path)

    def turns(self, messages: Sequence[Message]) -> None:
        """All messages, in order."""
        placed = ((f"messages[{i}]", message) for i, message in enumerate(messages))
        for _, run in groupby(placed, key=lambda each: each[1].role):
            turn = list(run)
            match turn[0][1]:
                case SystemMessage():
                    for path, message in turn:
                        if isinstance(message, SystemMessage):
                            self.system(message.content, path)
                case UserMessage():
                    self._user(turn[0][0], list(_blocks(turn)))
                case AssistantMessage():
                    self._assistant(turn[0][0], list(_blocks(turn)))

    def _user(self, path: str, blocks: list[Placed]) -> None:
        results = [(at, block) for at, block in blocks if isinstance(block, ToolResultBlock)]
        for at, result in results:
            self._result(at, result)
        shown = [(at, b) for at, b in blocks if isinstance(b, TextBlock | ImageBlock)]
        if shown or not results:
            message = self._add({"role": "user", "content": [_part(b) for _, b in shown]}, path)
            for index, (at, _) in enumerate(shown):
                self._place_part(f"{message}.content[{index}]", at)

    def _result(self, path: str, result: ToolResultBlock) -> None:
        content: Any = result.content or ""
        if not isinstance(content, str):
            content = [_part(block) for block in content]
        fields = {"role": "tool", "tool_call_id": result.tool_use_id, "content": content}
        message = self._add(fields, path)
        self.paths[f"{message}.tool_call_id"] = f"{path}.tool_use_id"
        for index in range(len(content) if isinstance(content, list) else 0):
            self._place_part(f"{message}.content[{index}]", f"{path}.content[{index}]")

    def _assistant(self, path: str, blocks: list[Placed]) -> None:
        calls = [(at, block) for at, block in blocks if isinstance(block, ToolUseBlock)]
        texts = [_part(block) for _, block in blocks if isinstance(block, TextBlock)]
        thoughts = [block.thinking for _, block in blocks if isinstance(block, ThinkingBlock)]
        fields: dict[str, Any] = {"role": "assistant", "content": texts}
        if thoughts:
            fields["reasoning_content"] = "\n\n".join(thoughts)
        if calls:
            fields["tool_calls"] = [_call(block) for _, block in calls]
        message = self._add(fields, path)
        for index, (at, _) in enumerate(calls):
            self.paths.setdefault(f"{message}.tool_calls", at)
            self.paths[f"{message}.tool_calls[{index}]"] = at

    def _add(self, message: dict[str, Any], path: str) -> str:
        name = f"messages[{len(self.messages)}]"
        self.messages.append(message)
        self.paths[name] = path
        return name

    def _place_part(self, part: str, path: str) -> None:
        self.paths[part] = path
        self.paths[f"{part}.image_url"] = f"{path}.source"


def _blocks(turn: Iterable[tuple[str, Message]]) -> Iterable[Placed]:
    for path, message in turn:
        if isinstance(message.content, str):
            yield f"{path}.content", TextBlock(type="text", text=message.content)
            continue
        for index, block in enumerate(message.content):
            yield f"{path}.content[{index}]", block


def _part(block: TextBlock | ImageBlock) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    source = block.source
    if isinstance(source, EmbeddedImage):
        url = f"data:{source.media_type};base64,{source.data}"
    else:
        url = source.url
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: ToolUseBlock) -> dict[str, Any]:
    return {"id": block.id, "function": {"name": block.name, "arguments": block.input}}
