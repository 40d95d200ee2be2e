"""Replaced parts do what their names say, and every one of them changes what the model computes."""

from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from train_tiny import parts

from diptych.offline import LLM

IDS = [3 + 7 * i % 200 for i in range(200)]


def test_the_newest_entries_are_those_of_the_highest_numbers_that_are_seen() -> None:
    scores = torch.tensor([[5.0, 1.0, 9.0, -torch.inf], [5.0, -torch.inf, -torch.inf, -torch.inf]])
    assert parts.newest(scores, 2).tolist() == [[1, 2], [0, parts.NOTHING]]


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, numerics="exact")


@pytest.mark.parametrize("name", [name for name in parts.PARTS if name != "as is"])
def test_without_a_part_other_logits_come_out(llm: LLM, name: str) -> None:
    whole = llm.logits(IDS)
    with ExitStack() as stack:
        for change in parts.PARTS[name]:
            stack.enter_context(patch.object(*change))
        without = llm.logits(IDS)
    assert torch.isfinite(without).all() and not torch.equal(whole, without)
    assert torch.equal(llm.logits(IDS), whole)  # and nothing stays
