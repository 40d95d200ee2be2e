"""Grammars in the engine: compiled off its thread, followed token by token on it.

    grammars = Grammars(read_vocabulary(tokenizer_json, vocab_size, stop_ids))
    compiled = await grammars.prepare(constraint)          # asyncio side, before Accepted
    matcher = grammars.matcher(compiled, after="</think>")  # engine side
    replay(matcher, tokens)                                # hand-off, recompute
    matcher.fill(masks, row); matcher.accept(token)        # each step

Reading order: matcher, backends, grammars, trial, __main__ (the side process).
"""

from diptych.engine.grammar.backends import BackendName, Compiled
from diptych.engine.grammar.grammars import Grammars
from diptych.engine.grammar.matcher import Matcher, fill_ahead, replay
from diptych.engine.grammar.trial import TrialLimits

__all__ = [
    "BackendName",
    "Compiled",
    "Grammars",
    "Matcher",
    "TrialLimits",
    "fill_ahead",
    "replay",
]
