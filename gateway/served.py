"""What this gateway serves: the model's names, its tokenizer, and the fleet behind it."""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from diptych import __version__
from diptych.core import blocks
from diptych.core.constraint import Constraint
from diptych.core.errors import Misconfigured, NotFound, Overloaded
from diptych.core.ids import BlockHash
from diptych.core.sampling import Sampling
from diptych.gateway.generation import GenerationRequest
from diptych.gateway.policy import Policy
from diptych.router.client import Fleet
from diptych.text import constraints, tokenizer
from diptych.text.markers import Segment
from diptych.text.tokenizer import Tokenizer

Number = TypeVar("Number", int, float)
Result = TypeVar("Result")

INLINE_CHARS = 4096  # longer texts are tokenised off the event loop
NUM_TOKENIZING = 4  # long texts at once: one that takes a minute must not keep all others
KEPT_CHECKS = 1024


@dataclass(frozen=True, slots=True)
class Identity:
    """What all workers agree on."""

    namespace: bytes
    max_model_len: int
    block_tokens: int

    @property
    def fingerprint(self) -> str:
        """Changes whenever results may change."""
        seen = self.namespace + __version__.encode()
        return f"fp_{hashlib.blake2b(seen, digest_size=4).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as ids, and its place among cached blocks."""

    token_ids: tuple[int, ...]
    scope: bytes
    hashes: tuple[BlockHash, ...]


class Served:
    """Read-only, but for the last identity heard: it outlives workers that restart."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model_name: str,
        master_key: bytes,
        fleet: Callable[[], Fleet | None],
        defaults: Sampling | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.created = int(time.time())
        self.fleet = fleet
        self.policy = policy or Policy()
        self._master_key = master_key
        self._defaults = defaults or Sampling()
        self._identity: Identity | None = None
        self._threads = ThreadPoolExecutor(NUM_TOKENIZING, "tokenize")
        self._checks = ThreadPoolExecutor(1, "constraints")
        self._checked: dict[str, None] = {}  # keys of constraints that are fine, oldest first

    def check_model(self, name: str) -> str:
        """The served model's own name; NotFound unless it goes by this name, too."""
        if name != self.model_name and self.policy.alias(name) is None:
            raise NotFound(
                f"The model `{name[:128]}` does not exist or you do not have access to it.",
                code="model_not_found",
                param="model",
            )
        return self.model_name

    def identity(self) -> Identity:
        """Of the fleet; Overloaded while no worker was ever heard of."""
        identity = self._last_identity()
        if identity is None:
            raise Overloaded("no worker has joined yet", retry_after_s=2)
        return identity

    def _last_identity(self) -> Identity | None:
        fleet = self.fleet()
        if fleet is not None and fleet.namespace:
            self._identity = Identity(fleet.namespace, fleet.max_model_len, fleet.block_tokens)
        return self._identity

    @property
    def degraded(self) -> str:
        """By what the router decides where that is not its usual policy; else nothing."""
        fleet = self.fleet()
        return fleet.policy if fleet is not None and fleet.policy not in ("", "cost") else ""

    @property
    def version(self) -> str:
        """Of the model, as far as known."""
        identity = self._last_identity()
        return identity.fingerprint if identity else "unknown"

    @property
    def max_model_len(self) -> int | None:
        """The context length, as far as known."""
        identity = self._last_identity()
        return identity.max_model_len if identity else None

    def sampling(self, request: GenerationRequest) -> Sampling:
        """The request's parameters over the checkpoint's; a seed is drawn when none is given."""
        seed = request.seed if request.seed is not None else secrets.randbits(63)
        defaults = self._defaults
        return Sampling(
            temperature=_first(request.temperature, defaults.temperature),
            top_p=_first(request.top_p, defaults.top_p),
            top_k=max(0, _first(request.top_k, defaults.top_k)),
            min_p=_first(request.min_p, defaults.min_p),
            seed=seed % 2**64,
            ignore_eos=request.ignore_eos,
            stop_token_ids=tuple(request.stop_token_ids),
            logit_bias=tuple(request.logit_bias.items()),
            repetition_penalty=request.repetition_penalty,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            min_tokens=request.min_tokens,
            allowed_token_ids=tuple(request.allowed_token_ids or ()),
            logprobs=request.top,
            prompt_logprobs=request.prompt_logprobs,
        )

    async def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as tokens, as it is and behind a space."""
        if not words:
            return ()
        variants = [variant for word in words for variant in (word, f" {word.lstrip()}")]
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: [self.tokenizer.encode([variant]) for variant in variants]
        )
        return tuple(dict.fromkeys(found))

    async def check_constraint(self, constraint: Constraint) -> None:
        """BadRequest unless it can be enforced, as far as that is known without a model."""
        if constraint.key in self._checked:
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._checks, constraints.check, constraint)
        self._checked[constraint.key] = None
        if len(self._checked) > KEPT_CHECKS:
            del self._checked[next(iter(self._checked))]

    async def encode(
        self,
        segments: Sequence[Segment],
        identity: Identity,
        tenant: str,
        user: str,
        salt: str,
        kept: int | None = None,
    ) -> Prompt:
        """Tokenise and hash; long texts in a thread, so that others are served meanwhile.

        `kept`: the prompt begins with the last so many tokens.
        """
        (prompt,) = await self.encode_all([segments], identity, tenant, user, salt, kept)
        return prompt

    async def encode_all(
        self,
        prompts: Sequence[Sequence[Segment]],
        identity: Identity,
        tenant: str,
        user: str,
        salt: str,
        kept: int | None = None,
    ) -> list[Prompt]:
        """The same for several prompts of one request."""

        def encode() -> list[Prompt]:
            scope = blocks.scope(identity.namespace, self._master_key, tenant, user, salt)
            return [self._encode(each, identity, scope, kept) for each in prompts]

        return await self.unhurried(encode, sum(map(_size, prompts)))

    async def unhurried(self, work: Callable[[], Result], size: int) -> Result:
        """Do work with texts of this many characters or ids: in a thread if that takes long."""
        if size <= INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._checks.shutdown(wait=False, cancel_futures=True)

    def _encode(
        self, segments: Sequence[Segment], identity: Identity, scope: bytes, kept: int | None
    ) -> Prompt:
        ids = self.tokenizer.encode(segments)
        if kept is not None:
            ids = ids[-kept:]
        return Prompt(ids, scope, tuple(blocks.chain(scope, ids, identity.block_tokens)))


def load(
    checkpoint: Path,
    model_name: str,
    master_key: bytes,
    fleet: Callable[[], Fleet | None],
    policy: Policy | None = None,
) -> Served:
    """Read a checkpoint's tokenizer and generation defaults."""
    loaded = tokenizer.load(checkpoint)
    return Served(loaded, model_name, master_key, fleet, _defaults(checkpoint), policy)


def _defaults(checkpoint: Path) -> Sampling:
    """Of generation_config.json, where there is one."""
    path = checkpoint / "generation_config.json"
    if not path.exists():
        return Sampling()
    try:
        fields = json.loads(path.read_bytes())
        return Sampling(
            temperature=float(fields.get("temperature", 1.0)), top_p=float(fields.get("top_p", 1.0))
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise Misconfigured(f"{path} is not a usable generation config: {error}") from error


def _size(segments: Sequence[Segment]) -> int:
    return sum(len(each) if isinstance(each, str) else 1 for each in segments)


def _first(given: Number | None, default: Number) -> Number:
    return default if given is None else given
