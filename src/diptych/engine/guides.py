"""The guides of a worker's requests: grammars are compiled beside the engine, before it knows."""

import asyncio
from collections.abc import Callable

from diptych.core.request import Generation
from diptych.engine.grammar import Grammars
from diptych.engine.guide import Guide
from diptych.text.constraints.vocabulary import Vocabulary


class Guides:
    """Used from the event loop. What compiles grammars loads for seconds: it comes on demand."""

    def __init__(
        self, vocabulary: Vocabulary, on_made: Callable[[float], None] = lambda took_s: None
    ) -> None:
        """`on_made` hears how long each grammar took that was tried and compiled, or refused."""
        self._vocabulary = vocabulary
        self._on_made = on_made
        self._grammars: Grammars | None = None
        self._loading = asyncio.Lock()

    async def of(self, generation: Generation) -> Guide | None:
        """For one output; None if it is free, BadRequest if its constraint cannot be enforced."""
        if generation.constraint is None:
            return None
        grammars = await self._loaded()
        has_output = bool(generation.forced)  # then somebody has compiled it before
        compiled = await grammars.prepare(generation.constraint, is_tried=has_output)
        matcher = grammars.matcher(compiled, after=generation.constraint_after or None)
        return Guide(matcher, self._vocabulary.num_words, len(generation.prompt))

    async def close(self) -> None:
        """End the process that tries grammars."""
        if self._grammars is not None:
            await self._grammars.close()

    async def _loaded(self) -> Grammars:
        async with self._loading:
            if self._grammars is None:
                self._grammars = await asyncio.to_thread(
                    Grammars, self._vocabulary, on_made=self._on_made
                )
            return self._grammars
