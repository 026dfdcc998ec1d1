"""The order in which CUDA tensors go through host memory, on a device that only writes it down."""

import torch

from doubletime.mpi.staging import Direct, Staged, plan


class Recorder:
    """A device whose stream is a list."""

    def __init__(self):
        self.log = []

    def pinned_like(self, tensor):
        self.log.append("pin")
        return torch.empty_like(tensor)

    def record(self):
        self.log.append("record")
        return "ready"

    def finish(self, event):
        self.log.append(f"finish {event}")

    def side_copy(self, pairs):
        for target, source in pairs:
            target.copy_(source)
        self.log.append(f"copy back {len(pairs)}")
        return "written"

    def follow(self, event):
        self.log.append(f"follow {event}")


def test_staged_tensors_go_out_and_only_the_written_come_back():
    device, read, written = Recorder(), torch.ones(3), torch.zeros(3)
    staged = Staged(device, [read, written], [1])
    staged.begin()
    staged.before()
    assert torch.equal(staged.host[0], read)
    staged.host[0].fill_(9)
    staged.host[1].fill_(7)
    staged.after()
    staged.settle()
    assert (read.tolist(), written.tolist()) == ([1, 1, 1], [7, 7, 7])
    assert device.log == ["pin", "pin", "record", "finish ready", "copy back 1", "follow written"]


def test_a_cuda_aware_mpi_gets_the_tensors_themselves_once_the_stream_is_there():
    device, tensor = Recorder(), torch.ones(3)
    direct = Direct(device, [tensor])
    direct.begin()
    direct.before()
    direct.after()
    direct.settle()
    assert direct.host[0] is tensor
    assert device.log == ["record", "finish ready"]


def test_host_tensors_need_no_plan():
    assert plan([torch.ones(2)], [0], lambda: True) is None
