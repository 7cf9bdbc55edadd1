"""The pretended device refuses and counts what a real one does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pretend_cuda import PretendCuda
from torch import nn

MIXED = (
    r"^Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
    r"cpu!"
)


@pytest.fixture
def cuda():
    with PretendCuda() as device:
        yield device


REFUSED = {
    "sum": lambda x, cpu: x + cpu,
    "in_place": lambda x, cpu: x.mul_(cpu),
    "into_a_cpu_number": lambda x, _: torch.zeros(()).add_(x.sum()),
    "cat": lambda x, cpu: torch.cat([x, cpu]),
    "cpu_tensor_by_cuda_index": lambda x, cpu: cpu[x.argmax(1)],
    "cpu_embedding": lambda x, cpu: torch.nn.functional.embedding(x.argmax(1), cpu),
    "scattered_values": lambda x, cpu: x.clone().__setitem__(x.argmax(1), cpu),
    "cuda_layer": lambda x, cpu: nn.Linear(3, 3).to(x.device)(cpu),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_of_two_devices_do_not_mix(name, cuda):
    cpu = torch.rand(3, 3)
    with pytest.raises(RuntimeError, match=MIXED):
        REFUSED[name](cpu.to("cuda"), cpu)
    REFUSED[name](cpu, cpu)


@pytest.mark.parametrize(
    "read", [lambda x: x.numpy(), np.asarray, np.array], ids=["numpy", "asarray", "array"]
)
def test_a_device_tensor_is_no_array(read, cuda):
    with pytest.raises(TypeError, match=r"^can't convert cuda:0 device type tensor to numpy"):
        read(torch.ones(3, device="cuda"))
    assert (read(torch.ones(3, device="cuda").cpu()) == 1).all()


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: torch.rand(3, device="cuda", generator=generator),
        lambda generator: torch.zeros(3).cuda().normal_(generator=generator),
    ],
)
def test_a_cpu_generator_fills_no_device_tensor(draw, cuda):
    with pytest.raises(
        RuntimeError, match=r"^Expected a 'cuda' device type for generator but found 'cpu'$"
    ):
        draw(torch.Generator())


ALLOWED = {
    "number": lambda x, cpu: x + cpu.sum(),
    "index_from_the_cpu": lambda x, cpu: x[cpu.argmax(1)],
    "copy": lambda x, cpu: x.clone().copy_(cpu),
    "assigned_slice": lambda x, cpu: x.clone().__setitem__(slice(2), cpu[:2]),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_torch_allows_is_allowed(name, cuda):
    cpu = torch.rand(3, 3)
    result = ALLOWED[name](cpu.to("cuda"), cpu)
    expected = ALLOWED[name](cpu, cpu)
    assert not cuda.syncs.total()
    if expected is not None:
        assert result.device.type == "cuda"
        assert torch.equal(result.cpu(), expected)


WAITING = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu", torch.float64),
    "assigned_to_the_cpu": lambda x: torch.zeros(3, 3).__setitem__(0, x[0]),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x.gt(0)],
    "index_without_dimensions": lambda x: x[x[0].argmax()],
    "repeat_interleave": lambda x: x.repeat_interleave(x.argmax(1), 0),
    "eigh": torch.linalg.eigh,
}


@pytest.mark.parametrize("name", WAITING)
def test_each_wait_counts_once(name, cuda):
    x = torch.rand(3, 3).to("cuda")
    WAITING[name](x)
    assert cuda.syncs.total() == 1


def test_outside_the_context_nothing_is_pretended():
    with PretendCuda():
        layer = nn.Linear(3, 3).to("cuda")
        assert layer.weight.is_cuda
    assert layer.weight.device.type == "cpu"
    assert layer(torch.ones(3)).numel() == 3
    assert torch.cuda.get_device_capability.__module__ == "torch.cuda"
