"""Timing by turns, on real ranks."""

import json

from ranks import run_ranks

PROGRAM = """
    import json, time
    from doubletime.mpi import library
    from doubletime.planning.turns import Work, by_turns

    library.initialize()
    world = library.load().COMM_WORLD
    comm = world.Dup()
    order, shares = [], []

    def short():
        order.append("short")
        time.sleep(0.001)

    def long():
        order.append("long")
        time.sleep(0.005 + 0.010 * comm.rank)  # rank 1 is the slowest

    works = [Work(work, comm.Barrier) for work in (short, long)]
    short_s, long_s = by_turns(comm, works, 0.2, shares.append)
    mine = [len(short_s), float(short_s.min()), len(long_s), float(long_s.min()), order]
    everyone = comm.allgather(mine)
    if comm.rank == 0:
        print(json.dumps({"mine": mine, "alike": all(other == mine for other in everyone),
                          "shares": shares}))
    comm.Free()
    library.finalize()
"""


def test_slowest_rank_counts_turns_alternate_and_every_rank_agrees():
    found = json.loads(run_ranks(PROGRAM, 2).check().stdout)
    shorts, short_s, longs, long_s, order = found["mine"]
    assert found["alike"]
    assert short_s >= 0.001
    assert long_s >= 0.015
    assert shorts > longs >= 5, "a short piece of work is called more often in a turn"
    assert found["shares"] == sorted(found["shares"])
    assert found["shares"][-1] == 1.0
    begins = [now for before, now in zip(["", *order], order, strict=False) if now != before]
    assert len(begins) >= 5, "the two take turns"
