from diptych.core.blocks import chain as block_chain
from diptych.core.ids import BlockHash
from diptych.engine.prefix_cache import Chain, PrefixCache, Retention

SCOPE = b"s" * 16
TOKENS = list(range(40))


def publish(
    cache: PrefixCache, chain: Chain, tokens: list[int], pages: list[int], *, full: bool = True
) -> list[int]:
    return [
        cache.publish(page, chain.name(i, tokens), chain.retention, full_window=full)
        for i, page in enumerate(pages)
    ]


def names(chain: Chain, count: int) -> list[BlockHash]:
    return [chain.name(i, TOKENS) for i in range(count)]


def test_a_chain_names_blocks_as_core_does_and_only_as_far_as_asked() -> None:
    chain = Chain(SCOPE, 8)
    assert chain.name(2, TOKENS) == block_chain(SCOPE, TOKENS, 8)[2]
    assert len(chain.names) == 3


def test_a_chain_goes_on_with_tokens_that_come_later() -> None:
    chain = Chain(SCOPE, 8)
    chain.name(1, TOKENS[:17])
    assert chain.name(4, TOKENS) == block_chain(SCOPE, TOKENS, 8)[4]


def test_a_match_ends_at_the_first_block_that_is_missing_or_at_the_limit() -> None:
    cache, chain = PrefixCache(), Chain(SCOPE, 8)
    publish(cache, chain, TOKENS, [7, 9, 4])
    pages = [entry.page for entry in cache.match(Chain(SCOPE, 8), TOKENS, 5)]
    assert pages == [7, 9, 4]
    assert len(cache.match(Chain(SCOPE, 8), TOKENS, 2)) == 2
    other = [*TOKENS[:12], 99, *TOKENS[13:]]
    assert len(cache.match(Chain(SCOPE, 8), other, 5)) == 1


def test_another_scope_finds_nothing() -> None:
    cache = PrefixCache()
    publish(cache, Chain(SCOPE, 8), TOKENS, [7, 9])
    assert not cache.match(Chain(b"t" * 16, 8), TOKENS, 5)


def test_a_block_keeps_its_first_page() -> None:
    cache = PrefixCache()
    publish(cache, Chain(SCOPE, 8), TOKENS, [7, 9])
    assert publish(cache, Chain(SCOPE, 8), TOKENS, [5, 6]) == [7, 9]


def test_only_a_page_with_a_name_rests_in_the_cache() -> None:
    cache, chain = PrefixCache(), Chain(SCOPE, 8)
    publish(cache, chain, TOKENS, [7])
    assert cache.rest(7) and not cache.rest(8)
    assert cache.num_idle == 1
    cache.wake(7)
    assert cache.num_idle == 0 and cache.find(chain.name(0, TOKENS)) is not None


def test_blocks_of_batch_work_are_given_up_first_then_the_least_recently_used() -> None:
    cache, evicted = PrefixCache(), []
    cache.on_evict = evicted.append
    chat, batch = Chain(SCOPE, 8), Chain(b"b" * 16, 8, Retention.EPHEMERAL)
    publish(cache, chat, TOKENS, [1, 2])
    publish(cache, batch, TOKENS, [3])
    for page in (2, 1, 3):
        cache.rest(page)
    assert [cache.evict() for _ in range(3)] == [3, 2, 1]
    assert evicted == [batch.names[0], chat.names[1], chat.names[0]]
    assert not cache.match(Chain(SCOPE, 8), TOKENS, 5)


def test_a_block_is_kept_as_long_as_its_best_user_would() -> None:
    cache = PrefixCache()
    chain = Chain(SCOPE, 8, Retention.EPHEMERAL)
    publish(cache, chain, TOKENS, [1, 2])
    for page in (2, 1):
        cache.rest(page)
    (first, _) = cache.match(chain, TOKENS, 2)
    cache.wake(1)
    cache.promote(first, Retention.SESSION)
    cache.promote(first, Retention.EPHEMERAL)
    cache.rest(1)
    assert first.retention is Retention.SESSION
    assert [cache.evict(), cache.evict()] == [2, 1]
