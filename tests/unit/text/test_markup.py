"""Tags, however they are split."""

import pytest

from diptych.text.markup import MAX_CHARS, Kind, Tag, TagReader


def read(text: str, *, is_closing: bool = False, size: int = 1) -> tuple[Tag | None, str] | None:
    reader = TagReader(is_closing=is_closing)
    for start in range(0, len(text), size):
        rest = reader.push(text[start : start + size])
        if rest is not None:
            return reader.tag(), rest + text[start + size :]
    return None


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "tag", "rest"),
    [
        (" calls>\n", Tag(Kind.CALLS, False), "\n"),
        ("tool_calls>", Tag(Kind.OLD_CALLS, False), ""),
        (' invoke name="f">x', Tag(Kind.INVOKE, False, "f"), "x"),
        ('invoke name="f">', Tag(Kind.INVOKE, False, "f"), ""),
        (' invoke name="a>b\n">', Tag(Kind.INVOKE, False, "a>b\n"), ""),
        (' parameter name="k" string="true">>', Tag(Kind.PARAMETER, False, "k", True), ">"),
        (' parameter name="k" string="false" >', Tag(Kind.PARAMETER, False, "k", False), ""),
        (' parameter name="k"x" string="true">', Tag(Kind.PARAMETER, False, 'k"x', True), ""),
        (' parameter name="k">', Tag(Kind.PARAMETER, False, "k", None), ""),
        (' parameter name="k" string="maybe">', Tag(Kind.PARAMETER, False, "k", None), ""),
        (" calls x>y", None, "y"),
        (" foo>y", None, "y"),
        (" foo bar\ny>", None, "\ny>"),
        (" invoke>y", None, "y"),
        (' parameter string="true">y', None, "y"),
        (">y", None, "y"),
    ],
)
def test_a_tag_ends_at_its_bracket(text: str, tag: Tag | None, rest: str, size: int) -> None:
    assert read(text, size=size) == (tag, rest)


@pytest.mark.parametrize("kind", list(Kind))
def test_closing_tags_have_no_attributes(kind: Kind) -> None:
    assert read(f" {kind.value}>", is_closing=True) == (Tag(kind, True), "")
    assert read(f' {kind.value} name="f">', is_closing=True) == (None, "")


def test_a_tag_without_an_end_is_given_up() -> None:
    assert read(" calls") is None
    assert read("x" * (MAX_CHARS + 1) + "y") == (None, "y")
