"""Output tokens to what a client sees: reasoning, the answer, calls of tools.

Markers count only as token ids: the same characters spelled with ordinary tokens are text. The
result depends on the sequence of ids alone, not on how steps group them.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from diptych.text.calls import Calls
from diptych.text.detokenize import Detokenizer
from diptych.text.markers import ROLES, Marker
from diptych.text.markup import Kind, Tag, TagReader
from diptych.text.opening import Opening
from diptych.text.pieces import Oddity, Piece, Section, Text
from diptych.text.places import Places
from diptych.text.spelled import Spelled
from diptych.text.stops import StopFinder
from diptych.text.tokenizer import Tokenizer
from diptych.text.tools import Tool

_PLAIN_MARKERS = ROLES | {Marker.EOS, Marker.PAD}
_MARKERS = _PLAIN_MARKERS | {Marker.THINK, Marker.END_THINK, Marker.DSML}
_TAIL = "\n</"
_OPENING_KINDS = (Kind.CALLS, Kind.OLD_CALLS, Kind.INVOKE)


class Parser:
    """Of one output. Where it begins is known from the prompt, never guessed from the output."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        opening: Opening,
        *,
        tools: Sequence[Tool] = (),
        parallel: bool = True,
        trusted: bool = False,
        stops: Sequence[str] = (),
        keep_stop: bool = False,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        special: bool = False,
        merged: bool = False,
        placed: bool = True,
    ) -> None:
        """Without `tools`, calls are dropped. `parallel` false: the first call ends the turn.

        `trusted`: a grammar wrote the calls, so their values need no check. Stop strings count
        from the token after `min_tokens`. `special`: special tokens without a meaning here are
        shown as they are spelled. `merged`: the reasoning and the marker that ends it are shown as
        part of the answer, just as they were written. `placed`: pieces tell the tokens that begin
        in them; it costs, and only log-probabilities need it.
        """
        self._token_bytes = tokenizer.spelling if special else tokenizer.token_bytes
        self._is_merged = merged and opening.is_reasoning
        self._is_plain = opening is Opening.PLAIN
        markers = _PLAIN_MARKERS if self._is_plain else _MARKERS
        self._markers = {i: m for m in markers if (i := tokenizer.find(m)) is not None}
        self._section = Section.REASONING if opening.is_reasoning else Section.CONTENT
        has_start = opening in (Opening.REASONING, Opening.ANSWER)
        self._at_start = has_start and not self._is_merged
        self._decoder = Detokenizer()
        self._spelled = Spelled(markers)
        self._held = ""  # at the end of a text: line ends, and the beginning of a tag
        self._held_by: list[int] = []  # of each of these characters, the number of its token
        self._tag: TagReader | None = None
        self._has_tools = bool(tools)
        self.oddities: Counter[Oddity] = Counter()
        properties = {tool.name: tool.properties for tool in tools}
        self._calls = Calls(properties, parallel=parallel, trusted=trusted, odd=self.oddities)
        self._is_calling = opening is Opening.CALLS
        if self._is_calling:
            self._calls.open_block()
        self._stops = StopFinder(stops, keep=keep_stop)
        self._places = Places() if placed else None
        self._min_tokens = min_tokens
        self._ignore_eos = ignore_eos
        self._out: list[Piece] = []
        self._shown = 0  # the last token of which something was shown
        self._begun = 0  # the last token known to begin in a text
        self.reasoning_tokens = 0
        self.sections: list[Section | None] = []
        """Of each token; None for markers, markup and line ends that were dropped."""
        self.num_settled = 0
        """Tokens whose section is certain and whose text has left, but for stop strings."""
        self.surplus_tokens = 0
        """Tokens after the one that completed the stop string."""
        self.is_over = False
        """The turn ended by a stop string, by a role id, or by the only call allowed."""

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.found

    @property
    def is_reasoning(self) -> bool:
        """What comes next is reasoning, as far as is known."""
        return self._section is Section.REASONING

    @property
    def num_calls(self) -> int:
        """Calls that are complete and were shown."""
        return self._calls.num_finished if self._has_tools else 0

    def push(self, token_id: int) -> list[Piece]:
        """What this token made certain, in order."""
        if self.is_over:
            return []
        self.sections.append(None)
        marker = self._markers.get(token_id)
        if marker is None:
            spelling = self._token_bytes(token_id)
            if spelling:
                self._claim()
                if text := self._decoder.push(spelling):
                    self._text(text)
        else:
            self._flush_character(cut=False)
            self._marker(marker)
        return self._taken()

    def push_text(self, chunk: str) -> list[Piece]:
        """The same for output that comes as text alone: markers are what looks like them."""
        if self.is_over:
            return []
        self.sections.append(None)
        for part in self._spelled.push(chunk):
            self._part(part)
        return self._taken()

    def finish(self, *, cut: bool) -> list[Piece]:
        """Everything held; `cut` = the output ended in the middle, by its length."""
        if not self.is_over:
            for part in self._spelled.finish():
                self._part(part)
            self._flush_character(cut=cut)
            if self._tag is None:
                self._release(len(self._held))
            else:
                self._drop(len(self._held))
            if self._is_calling:
                self._show(self._calls.finish(cut=cut))
        self._flush_stops()
        self.num_settled = len(self.sections)
        out, self._out = self._out, []
        return out

    # Tokens

    def _taken(self) -> list[Piece]:
        if self._held_by:
            self.num_settled = self._held_by[0] - 1
        elif not self._decoder.is_inside:
            self.num_settled = len(self.sections)
        if not self._out:
            return []
        out, self._out = self._out, []
        return out

    def _claim(self) -> None:
        """The current token is text of the section, as long as nothing else is known."""
        if not self._is_calling and self._tag is None and self.sections[-1] is None:
            self.sections[-1] = self._section
            self.reasoning_tokens += self._section is Section.REASONING

    def _flush_character(self, *, cut: bool) -> None:
        rest = self._decoder.finish(cut=cut)
        if rest:
            self._text(rest)

    def _part(self, part: str | Marker) -> None:
        if isinstance(part, Marker):
            self._marker(part)
        else:
            self._claim()
            self._text(part)

    def _marker(self, marker: Marker) -> None:
        match marker:
            case Marker.EOS | Marker.PAD:
                pass
            case Marker.DSML:
                self._open_tag()
            case Marker.END_THINK | Marker.THINK:
                self._abandon_tag()
                self._think(marker)
            case _:
                self.oddities[Oddity.ROLE] += 1
                if not self._ignore_eos:
                    self._abandon_tag()
                    self._end_turn()

    def _think(self, marker: Marker) -> None:
        is_end = marker is Marker.END_THINK
        if is_end and self._section is Section.REASONING and not self._has_tools:
            self._is_calling = False  # whatever block is open, nobody asked for it
        if self._is_calling:
            self._text(marker.value)
        elif not is_end:
            if self._section is Section.CONTENT or not self._at_start or self._held:
                self._claim()
                self._text(marker.value)
        elif self._section is Section.REASONING:
            self._end_reasoning()
        else:
            self._release(len(self._held))

    def _end_turn(self) -> None:
        """Somebody else's turn would begin: everything held leaves."""
        self.is_over = True
        self._release(len(self._held))
        if self._is_calling:
            self._show(self._calls.finish(cut=False))

    # Text

    def _text(self, text: str) -> None:
        if self._tag is not None:
            rest = self._tag.push(text)
            if rest is None:
                return
            tag, self._tag = self._tag.tag(), None
            self._tagged(tag)
            if not rest or self.is_over:
                return
            text = rest
            self._claim()
        if self._at_start and not self._is_calling and not self._held:
            text = text.lstrip("\n")
            if not text:
                self._unclaim(len(self.sections))
                return
        if self._is_plain or (not self._held and text[-1] not in _TAIL):
            self._say(text, ())
            return
        self._held += text
        self._held_by += [len(self.sections)] * len(text)
        self._release(len(self._held) - self._tail(self._held))

    def _tail(self, text: str) -> int:
        """Characters at the end of a text which the next token may turn into something else."""
        kept = text.removesuffix("/") if text.endswith("</") else text
        kept = kept.removesuffix("<")
        if not self._is_calling and (self._section is Section.REASONING or self._has_tools):
            kept = kept.rstrip("\n")
        return len(text) - len(kept)

    def _release(self, num_chars: int) -> None:
        if num_chars:
            text, self._held = self._held[:num_chars], self._held[num_chars:]
            owners, self._held_by = self._held_by[:num_chars], self._held_by[num_chars:]
            self._say(text, owners)

    def _drop(self, num_chars: int) -> None:
        """The first held characters were no text."""
        for number in self._held_by[:num_chars]:
            self._unclaim(number)
        self._held, self._held_by = self._held[num_chars:], self._held_by[num_chars:]

    def _unclaim(self, number: int) -> None:
        if number > self._shown and (section := self.sections[number - 1]) is not None:
            self.sections[number - 1] = None
            self.reasoning_tokens -= section is Section.REASONING

    def _say(self, text: str, owners: Sequence[int]) -> None:
        """Text that is certain; `owners` are the tokens of its characters if not the current."""
        if self._is_calling:
            self._show(self._calls.text(text))
            return
        self._at_start = False
        current = len(self.sections)
        if self._places is not None:
            self._places.enter(len(text), self._beginning(owners or (current,)))
        self._shown = owners[-1] if owners else current
        if self._section is Section.CONTENT and self._shown > self._min_tokens:
            exempt = bisect_right(owners, self._min_tokens)
            text = text[:exempt] + self._stops.push(text[exempt:])
            if self._stops.found is not None:
                self.is_over = True
                last = owners[exempt + self._stops.found_at - 1] if owners else current
                self.surplus_tokens = current - last
        if text:
            self._out.append(self._piece(self._section, text))

    def _beginning(self, owners: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Tokens that begin in a text that is shown, and at which of its characters.

        A character's owner is the token that completed it; others may have begun it.
        """
        for place, owner in enumerate(owners):
            for number in range(self._begun + 1, owner + 1):
                if self.sections[number - 1] is not None:
                    self._begun = number
                    yield number - 1, place

    def _piece(self, section: Section, text: str) -> Text:
        shown = Section.CONTENT if self._is_merged else section
        return Text(shown, text, self._places.show(len(text)) if self._places else ())

    def _flush_stops(self) -> None:
        """What could have become a stop string did not."""
        if self._stops.found is None and (rest := self._stops.finish()):
            self._out.append(self._piece(Section.CONTENT, rest))

    def _end_reasoning(self) -> None:
        if self._is_merged:
            self._release(len(self._held))
            token = len(self.sections) - 1
            self._out.append(Text(Section.CONTENT, Marker.END_THINK.value, (token,)))
            self._section = Section.CONTENT
            return
        tail = len(self._held) - len(self._held.rstrip("\n"))
        self._release(len(self._held) - tail)
        self._drop(tail)
        self._section = Section.CONTENT
        self._at_start = True

    # Tags

    def _open_tag(self) -> None:
        if self._tag is not None:
            start = self._tag.opens_another
            self._abandon_tag()
        else:
            start = next((s for s in ("</", "<") if self._held.endswith(s)), "")
            for number in self._held_by[len(self._held) - len(start) :]:
                self._unclaim(number)
            self._held = self._held.removesuffix(start)
            del self._held_by[len(self._held) :]
        if start:
            self._tag = TagReader(is_closing=start == "</")
        else:
            self.oddities[Oddity.STRAY_MARKUP] += 1

    def _abandon_tag(self) -> None:
        if self._tag is not None:
            self._tag = None
            self.oddities[Oddity.STRAY_MARKUP] += 1

    def _tagged(self, tag: Tag | None) -> None:
        if not self._is_calling:
            if tag is None or tag.is_closing or tag.kind not in _OPENING_KINDS:
                self.oddities[Oddity.STRAY_MARKUP] += 1
                return
            if self._section is Section.REASONING and self._has_tools:
                self._section = Section.CONTENT
            self._drop(len(self._held))
            self._flush_stops()
            self._is_calling = True
        self._show(self._calls.tag(tag))
        if self._calls.is_outside and not self._has_tools:
            self._is_calling = False  # a block that nobody asked for: the answer goes on
        self.is_over = self._has_tools and self._calls.is_full

    def _show(self, pieces: list[Piece]) -> None:
        if self._has_tools:
            self._out += pieces
