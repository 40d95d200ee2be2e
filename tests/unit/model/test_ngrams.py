"""Token compression, hash functions, and rows, against published values."""

import pytest
import torch
from tokenizers import Tokenizer, models

from diptych.core.errors import Misconfigured
from diptych.model.ngrams import DEAD, Hashing, compress, compression_map, find_primes
from diptych.model.spec import EngramSpec, ModelSpec

RELEASED = EngramSpec((1, 14), (384006168, 384016682), 4, 8, 256, 16_000_000, 2, 99092)
SMALL = EngramSpec((1, 14), (112, 252), 4, 2, 32, 11, 2, 6)
SMALL_MAP = torch.tensor([0, 1, 1, 1, 2, 2, 3, 4, 5])
SMALL_TOKENS = ["[UNK]", " The", "the", "THE", "é", "E", " ", "x", "\ufffd"]


@pytest.fixture(scope="module")
def released():
    return Hashing.of(RELEASED, torch.arange(RELEASED.compressed_vocab_size))


def test_released_hash_functions_match_golden(golden, released):
    g = golden("ops/engram")
    assert torch.equal(released.primes, g["released.primes"])
    assert torch.equal(released.offsets, g["released.offsets"])
    assert torch.equal(released.multipliers, g["released.multipliers"])


@pytest.mark.parametrize("dead", [False, True])
def test_released_rows_match_golden(golden, released, dead):
    g = golden("ops/engram")
    ids = g["released.compressed_ids"].clone()
    if dead:
        ids[g["released.dead_mask"].bool()] = DEAD
    grams = released.grams(ids, 0, len(ids))
    rows = torch.stack([released.rows(grams, table) for table in range(2)], 1)
    assert torch.equal(rows, g["released.rows_with_dead" if dead else "released.rows"])


def test_rows_of_a_short_sequence_have_their_published_values(released):
    grams = released.grams([0, 5, 17, 99091, 1234], 0, 5)
    first, last = released.rows(grams, 0), released.rows(grams, 1)
    assert first[0, :3].tolist() == [5702652, 24393184, 39183301]
    assert first[4, :3].tolist() == [10328814, 26345763, 40999651]
    assert first[4, -1] == 371359148
    assert last[4, :2].tolist() == [1440856, 24829676]
    assert last[4, -1] == 380926429


def test_primes_are_never_shared_between_tables():
    assert find_primes(SMALL) == [[11, 13, 17, 19, 23, 29], [31, 37, 41, 43, 47, 53]]


def test_a_small_model_hashes_as_published():
    hashing = Hashing.of(SMALL, SMALL_MAP)
    assert hashing.multipliers.tolist() == [
        [1265604610235772205, 79932166973103877, 593885974911493955, 1221925540571170885],
        [1118365701629147841, 850718144586061385, 510676356168679127, 1364484065151725665],
    ]
    a = SMALL_MAP[[7, 1, 4, 3, 8, 7]].clone()
    a[2:4] = DEAD
    b = SMALL_MAP[[2, 3, 1, 7, 5, 6]]
    rows = {
        (sequence, p): (hashing.rows(grams, 0)[p].tolist(), hashing.rows(grams, 1)[p].tolist())
        for sequence, grams in (("A", hashing.grams(a, 0, 6)), ("B", hashing.grams(b, 0, 6)))
        for p in range(6)
    }
    start = ([10, 13, 39, 43, 71, 100], [3, 34, 100, 141, 191, 245])
    blank = ([6, 13, 35, 57, 80, 103], [22, 42, 98, 150, 171, 200])
    assert rows == {
        ("A", 0): start,
        ("A", 1): ([9, 11, 32, 43, 72, 88], [11, 65, 95, 111, 164, 244]),
        ("A", 2): blank,
        ("A", 3): blank,
        ("A", 4): ([1, 19, 37, 51, 80, 83], [25, 60, 102, 116, 153, 214]),
        ("A", 5): ([6, 12, 32, 56, 61, 93], [25, 58, 85, 135, 163, 214]),
        ("B", 0): blank,
        ("B", 1): blank,
        ("B", 2): blank,
        ("B", 3): start,
        ("B", 4): ([3, 22, 34, 48, 78, 97], [28, 64, 84, 121, 184, 200]),
        ("B", 5): ([4, 19, 31, 55, 76, 94], [5, 42, 106, 115, 181, 220]),
    }


def test_grams_do_not_depend_on_where_a_sequence_is_cut(released):
    ids = [5, 6, DEAD, 7, 8, 9, 10]
    whole = released.grams(ids, 0, 7)
    for cut in range(8):
        parts = released.grams(ids, 0, cut), released.grams(ids, cut, 7)
        assert torch.equal(torch.cat(parts), whole)


def test_spellings_that_normalise_alike_share_an_id():
    vocabulary = {token: i for i, token in enumerate(SMALL_TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    assert compress(tokenizer, 9) == (SMALL_MAP.tolist(), 6)


def test_the_map_of_a_checkpoint_counts_what_its_configuration_says(model, tmp_path):
    spec = model("tiny-text", "exact").spec
    token_map = model("tiny-text", "exact").weights.hashing.token_map
    assert len(token_map) == spec.vocab_size
    assert int(token_map.max()) + 1 == spec.engram.compressed_vocab_size


def test_a_tokenizer_of_another_model_is_refused(model, tmp_path):
    spec: ModelSpec = model("tiny-text", "exact").spec
    with pytest.raises(Misconfigured, match=r"tokenizer\.json: not a readable tokenizer"):
        compression_map(tmp_path, spec)
    vocabulary = {token: i for i, token in enumerate(SMALL_TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Misconfigured, match=r"expected 824 distinct normalised tokens.*found 6"):
        compression_map(tmp_path, spec)


def test_row_counts_that_are_not_the_sum_of_their_primes_are_refused():
    wrong = EngramSpec((1, 14), (112, 251), 4, 2, 32, 11, 2, 6)
    with pytest.raises(Misconfigured, match=r"expected 252 rows for layer 14.*found 251"):
        Hashing.of(wrong, SMALL_MAP)
