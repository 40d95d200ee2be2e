"""Block identity: what must change a hash, what must not, and the published vectors."""

import hashlib
import random

import pytest

from diptych.core import blocks


def make_namespace(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "model": "m",
        "weights": b"w",
        "tokenizer": b"t",
        "layout": b"l",
        "grain": 128,
        "numerics": "served",
    }
    return blocks.namespace(**{**fields, **changes})  # type: ignore[arg-type]


def test_published_vectors_hold() -> None:
    namespace = make_namespace()
    scope = blocks.scope(namespace, b"k", "tenant")
    chain = blocks.chain(scope, list(range(256)), 128)
    assert namespace.hex() == "cc137359859e68789f879b8af1c5f3b7"
    assert scope.hex() == "223a4d60a2875b75ce2892077aa5306b"
    assert [h.hex() for h in chain] == [
        "a60373cc18c8e65cd4193c9258fd1328",
        "6c3fe732cf660c5f18f60cae357e2315",
    ]
    assert blocks.slot_name(chain[1], 116).hex() == "6fa7192de0f6b706f077e663115d2648"


def test_a_slot_is_that_of_its_block_and_of_where_the_decoders_windows_begin() -> None:
    one, two = blocks.chain(blocks.scope(make_namespace(), b"k", "tenant"), list(range(256)), 128)
    names = {blocks.slot_name(block, floor) for block in (one, two) for floor in (0, 116)}
    assert len(names | {one, two}) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"weights": b"x"},
        {"tokenizer": b"u"},
        {"layout": b"m"},
        {"grain": 64},
        {"numerics": "cache"},
        {"adapter": "a"},
    ],
    ids=str,
)
def test_every_root_field_changes_the_namespace(change: dict[str, object]) -> None:
    assert make_namespace(**change) != make_namespace()


def test_fields_cannot_run_into_each_other() -> None:
    assert make_namespace(model="ab", weights=b"c") != make_namespace(model="a", weights=b"bc")
    namespace = make_namespace()
    assert blocks.scope(namespace, b"k", "ab", "c") != blocks.scope(namespace, b"k", "a", "bc")


def test_tenants_users_salts_and_keys_have_their_own_scope() -> None:
    namespace = make_namespace()
    scopes = {
        blocks.scope(namespace, b"k", "a"),
        blocks.scope(namespace, b"k", "b"),
        blocks.scope(namespace, b"k", "a", "u"),
        blocks.scope(namespace, b"k", "a", "", "u"),
        blocks.scope(namespace, b"other", "a"),
    }
    assert len(scopes) == 5


def test_only_full_blocks_have_a_hash_and_a_prefix_shares_them() -> None:
    scope = blocks.scope(make_namespace(), b"k", "t")
    ids = random.Random("prefix").choices(range(1000), k=70)
    assert blocks.chain(scope, ids[:7], 8) == []
    full = blocks.chain(scope, ids, 8)
    assert len(full) == 8
    assert blocks.chain(scope, ids[:40], 8) == full[:5]


def test_a_changed_token_changes_its_block_and_all_later_ones() -> None:
    scope = blocks.scope(make_namespace(), b"k", "t")
    ids = list(range(64))
    changed = [*ids[:20], 999, *ids[21:]]
    before, after = blocks.chain(scope, ids, 8), blocks.chain(scope, changed, 8)
    assert before[:2] == after[:2]
    assert all(a != b for a, b in zip(before[2:], after[2:], strict=True))


def test_an_image_changes_the_hash_of_its_block() -> None:
    parent = b"p" * 16
    span = blocks.ImageSpan(position=0, digest=b"d" * 32, offset=0, length=8)
    moved = blocks.ImageSpan(position=0, digest=b"d" * 32, offset=8, length=8)
    hashes = {blocks.block_hash(parent, range(8), images) for images in ([], [span], [moved])}
    assert len(hashes) == 3


def short_hash(file: bytes) -> bytes:
    """Sixteen bits, as in LMCache#4086."""
    return hashlib.blake2b(file, digest_size=2).digest()


def test_k6_images_with_equal_short_hashes_and_embedded_ids_share_no_block() -> None:
    """Only the whole digest of the pixels counts; whatever the file says of itself does not."""
    embedded_id = b"EXIF ImageUniqueID=0123456789abcdef"
    files: dict[bytes, bytes] = {}
    number = 0
    while (alike := short_hash(embedded_id + number.to_bytes(4, "big"))) not in files:
        files[alike] = embedded_id + number.to_bytes(4, "big")
        number += 1
    one, other = files[alike], embedded_id + number.to_bytes(4, "big")
    assert one != other and short_hash(one) == short_hash(other)

    def chain(pixels: bytes) -> list[bytes]:
        span = blocks.ImageSpan(2, hashlib.sha256(pixels).digest(), 0, 6)
        first = blocks.block_hash(b"s" * 16, range(8), [span])
        return [first, blocks.block_hash(first, range(8, 16))]

    assert chain(one) == chain(one)
    assert not set(chain(one)) & set(chain(other))
    # Nor if the digests themselves are alike but for their last byte.
    digests = [bytes(31) + bytes([last]) for last in (0, 1)]
    spans = [[blocks.ImageSpan(2, digest, 0, 6)] for digest in digests]
    assert len({blocks.block_hash(b"s" * 16, range(8), each) for each in spans}) == 2
    # Nor if the same pixels are cut elsewhere: another part of the image, or another place for it.
    digest = hashlib.sha256(one).digest()
    places = [(2, 0, 6), (2, 6, 6), (1, 0, 6), (2, 0, 5)]
    spans = [[blocks.ImageSpan(at, digest, offset, n)] for at, offset, n in places]
    assert len({blocks.block_hash(b"s" * 16, range(8), each) for each in spans}) == 4


def test_k8_an_adapter_and_a_salt_of_the_same_name_share_no_block() -> None:
    """vllm#44701: a LoRA named like somebody's salt hit that tenant's blocks."""
    base, adapted = make_namespace(), make_namespace(adapter="x")
    scopes = [
        blocks.scope(base, b"k", "t"),
        blocks.scope(base, b"k", "t", salt="x"),
        blocks.scope(base, b"k", "t", user="x"),
        blocks.scope(base, b"k", "x"),
        blocks.scope(adapted, b"k", "t"),
        blocks.scope(adapted, b"k", "t", salt="x"),
    ]
    chains = [blocks.chain(scope, range(64), 8) for scope in scopes]
    assert len({name for chain in chains for name in chain}) == len(scopes) * 8


def test_packed_ids_are_little_endian_and_come_back() -> None:
    assert blocks.pack_ids([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"
    assert blocks.unpack_ids(blocks.pack_ids([0, 5, 2**32 - 1])) == (0, 5, 2**32 - 1)


def test_half_an_id_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of item size|bytes length"):
        blocks.unpack_ids(b"\x01\x00\x00")


def test_parts_of_a_ticket_have_different_names() -> None:
    names = {blocks.part_hash(t, k) for t in (b"a" * 16, b"b" * 16) for k in ("tail", "slot")}
    assert len(names) == 4
