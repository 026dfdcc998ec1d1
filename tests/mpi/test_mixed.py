"""One process group of two backends: host tensors over mpi, CUDA tensors over another."""

from ranks import run_ranks


def test_host_tensors_of_a_mixed_group_go_over_mpi():
    program = """
        import torch, torch.distributed as dist
        dist.init_process_group("cpu:mpi,cuda:gloo")
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        group = dist.new_group([0, 1])
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [4, 4, 4]
        assert type(group).__name__ == "ProcessGroupMPI"
        dist.destroy_process_group()
    """
    run_ranks(program, 2, timeout=60).check()
