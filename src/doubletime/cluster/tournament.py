"""All pairs of players in as few rounds as there are, nobody twice in a round: the circle method."""

from __future__ import annotations


def rounds(players: int) -> list[list[tuple[int, int]]]:
    """Every pair of `players` once: p−1 rounds for even p, p for odd p, where one sits each round out.

    Args:
        players: how many, at least 0; they are 0, 1, …

    Returns:
        For each round its pairs, the lower number first.
    """
    seats = list(range(players)) + ([-1] if players % 2 else [])
    half, found = len(seats) // 2, []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        seats[1:] = [seats[-1], *seats[1:-1]]  # all but the first move on by one
    return found
