"""The ledger's counters against a recount of its entries."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.core.ids import WorkerId
from diptych.router.ledger import Entry, Ledger, Pending, Stage
from diptych.router.messages import Load, Want

P, Q, D = WorkerId("prefill-1"), WorkerId("prefill-2"), WorkerId("decode-1")


def entry(prompt_len: int = 100, max_new: int = 29, **fields: object) -> Entry:
    want = Want("r", prompt_len=prompt_len, max_new=max_new, deadline_s=1)
    return replace(Entry(want=want, attempt=1, arrived_s=0.0, block_tokens=16), **fields)


entries = st.builds(
    entry,
    prompt_len=st.integers(1, 300),
    max_new=st.integers(1, 300),
    stage=st.sampled_from(Stage),
    prefill=st.sampled_from([None, P, Q]),
    decode=st.sampled_from([None, D]),
    computed=st.integers(0, 400),
    is_decoding=st.booleans(),
    namespace=st.sampled_from([b"a", b"b"]),
)


@settings(deadline=None)  # a busy machine is no error
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "close", "forget"]), st.integers(0, 5), entries),
        max_size=40,
    )
)
def test_counters_always_equal_a_recount(steps: list[tuple[str, int, Entry]]) -> None:
    ledger = Ledger()
    for name, lease, new in steps:
        if name == "put" and lease in ledger.entries:
            ledger.update(lease, new)
        elif name == "put":
            ledger.open(lease, new)
        elif name == "close":
            ledger.close(lease)
        else:
            ledger.forget(D)
        everyone = ledger.entries.values()
        for worker in (P, Q, D):
            own = ledger.standing(worker).own
            assert own.held == sum(e.prefill == worker for e in everyone)
            assert own.rows == sum(e.decode == worker for e in everyone)
            assert own.blocks == sum(e.blocks for e in everyone if e.decode == worker)
            computing = [e for e in everyone if e.prefill == worker and e.stage is Stage.PREFILL]
            assert own.prompts == len(computing)
            assert own.prompt_tokens == sum(e.prompt_tokens_left for e in computing)
        for namespace in (b"a", b"b"):
            pending = [
                e.blocks
                for e in everyone
                if e.namespace == namespace and e.stage in (Stage.PREFILL, Stage.HANDOFF)
            ]
            assert ledger.pending(namespace) == Pending(len(pending), sum(pending))


def test_the_last_sampled_token_needs_no_page() -> None:
    assert entry(prompt_len=100, max_new=29).blocks == 8  # 128 positions of 16
    assert entry(prompt_len=100, max_new=30).blocks == 9


def test_a_report_keeps_only_what_is_not_our_own_work_as_foreign() -> None:
    ledger = Ledger()
    ledger.open(1, entry(decode=D, stage=Stage.DECODE))
    ledger.report(D, Load(running=3, reservations=1, free_blocks=80), num_blocks=100)
    standing = ledger.standing(D)
    assert (standing.rows, standing.foreign_rows) == (4, 3)
    assert (standing.blocks, standing.foreign_blocks) == (20, 12)
    ledger.open(2, entry(decode=D, stage=Stage.DECODE))
    assert ledger.standing(D).rows == 5  # counted at once, before any report
    ledger.report(D, Load(running=1, free_blocks=92), num_blocks=100)
    assert ledger.standing(D).rows == 2  # the second is on its way: never less than our own


def test_a_worker_that_is_gone_carries_nothing() -> None:
    ledger = Ledger()
    ledger.open(1, entry(decode=D, stage=Stage.DECODE, prefill=P))
    ledger.report(D, Load(running=9), num_blocks=10)
    ledger.assigned(D, 3)
    ledger.forget(D)
    standing = ledger.standing(D)
    assert (standing.rows, standing.blocks, standing.slots_given) == (0, 0, 0)
    assert ledger.standing(P).own.held == 1
    ledger.close(1)
    assert ledger.standing(D).rows == 0
    assert ledger.standing(P).own.held == 0


def test_a_hybrid_carries_the_prompt_until_it_gives_tokens() -> None:
    ledger = Ledger()
    ledger.open(1, entry(prompt_len=100, decode=D, stage=Stage.DECODE, is_hybrid=True, computed=40))
    assert ledger.standing(D).own.prompt_tokens == 60
    ledger.update(1, replace(ledger.entries[1], is_decoding=True))
    assert ledger.standing(D).own.prompt_tokens == 0
    assert ledger.standing(D).own.rows == 1
