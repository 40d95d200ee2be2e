"""When a prefill worker says no."""

import pytest

from diptych.core.errors import Overloaded
from diptych.prefill_service.admission import Limits, admit


def test_prompts_are_taken_up_to_the_limit_and_then_told_when_to_come_back() -> None:
    admit(1, Limits(waiting=2))
    with pytest.raises(Overloaded) as caught:
        admit(2, Limits(waiting=2))
    assert caught.value.retry_after_s
