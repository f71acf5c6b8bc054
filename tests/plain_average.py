"""The averages of `core.company`, computed plainly from all counts."""

from __future__ import annotations


def plain_average(counts):
    """(windows, mean, variance) of `counts`; the windows begin anew where the last ones are all others."""
    windows = 0
    mean = variance = lately = 0.0
    for count in counts:
        windows += 1
        lately += max(1 / windows, 0.25) * (count - lately)
        weight = max(1 / windows, 0.05)
        variance = (1 - weight) * (variance + weight * (count - mean) ** 2)
        mean = (1 - weight) * mean + weight * count
        if windows > 8 and (lately - mean) ** 2 > 9 * (variance + 0.1) / 7:
            windows, mean = 8, lately
    return windows, mean, variance
