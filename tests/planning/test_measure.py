"""Measuring all_reduce on real ranks, by peers that work and one that does not."""

import json

from ranks import run_ranks

MEASURES = """
    import json
    from doubletime.planning import measure, peers
    from doubletime.planning.timing import Advance, Timing

    events = []
    with peers.join(("gloo", "raw")) as job:
        timings = measure.all_reduce(job, ("mpi", "gloo", "raw"), [4, 1 << 21], 0.02, events.append)
        alike = len(set(job.comm.allgather(str(timings)))) == 1
    if job.rank == 0:
        print(json.dumps({
            "timings": [timing.record() for timing in timings],
            "alike": alike,
            "told": [event.record() for event in events if isinstance(event, Timing)],
            "fractions": [event.fraction for event in events if isinstance(event, Advance)],
        }))
"""

WRONG_ON_RANK_1 = """
    from doubletime.planning import measure, peers
    from doubletime.planning.peers import Peer

    class Lying(peers.Job):
        def peer(self, name):
            right = super().peer(name)
            def all_reduce(tensor):
                right.all_reduce(tensor)
                if self.rank == 1:
                    tensor[-1] += 1
            return Peer(name, all_reduce, right.barrier)

    with peers.join(("gloo",)) as job:
        lying = Lying(job.rank, job.world_size, job.comm, job.groups)
        try:
            measure.all_reduce(lying, ("gloo",), [64], 0.01, lambda event: None)
        except measure.CollectiveError as error:
            print(f"rank {job.rank}: {error.what}")
"""


def test_each_peer_is_timed_at_each_size_and_all_ranks_agree():
    found = json.loads(run_ranks(MEASURES, 2).check().stdout)
    measured = [(timing["nbytes"], timing["peer"]) for timing in found["timings"]]
    assert measured == [(n, peer) for n in (4, 1 << 21) for peer in ("mpi", "gloo", "raw")]
    assert found["alike"]
    assert found["told"] == found["timings"]
    assert found["fractions"] == sorted(found["fractions"])
    assert found["fractions"][-1] == 1.0
    for timing in found["timings"]:
        assert timing["repeats"] >= 5
        assert 0 < timing["best_s"] <= timing["median_s"]


def test_wrong_sum_on_one_rank_stops_every_rank_before_anything_is_timed():
    lines = sorted(run_ranks(WRONG_ON_RANK_1, 2).check().stdout.splitlines())
    assert [line.split(":")[0] for line in lines] == ["rank 0", "rank 1"]
    for line in lines:
        assert "all_reduce of 64 B by gloo gave wrong sums on rank 1 (1 of 2 ranks)" in line
