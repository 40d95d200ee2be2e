import threading

import pytest
import torch

from diptych.engine.device import Device, DeviceThread, Inline


@pytest.fixture(params=[Inline, DeviceThread])
def device(request: pytest.FixtureRequest) -> Device:
    made: Device = request.param()
    return made


def test_work_is_done_in_order_of_launch(device: Device) -> None:
    done: list[int] = []
    pending = [device.launch(lambda i=i: done.append(i)) for i in range(20)]
    pending[-1].result()
    assert done == list(range(20))
    device.close()


def test_what_work_raises_is_raised_to_whoever_waits_and_the_rest_is_done(device: Device) -> None:
    broken = device.launch(lambda: 1 // 0)
    assert device.launch(lambda: 7).result() == 7
    with pytest.raises(ZeroDivisionError):
        broken.result()
    device.close()


def test_a_thread_works_while_the_caller_does_something_else() -> None:
    device, go_on = DeviceThread(), threading.Event()
    pending = device.launch(lambda: go_on.wait(20))
    go_on.set()
    assert pending.result()
    assert device.launch(lambda: threading.current_thread().name).result().startswith("device")
    torch.set_num_threads(1)
    assert device.launch(torch.get_num_threads).result() == 1
    device.close()
    with pytest.raises(RuntimeError):
        device.launch(lambda: None)
