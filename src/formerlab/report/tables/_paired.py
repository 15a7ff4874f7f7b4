"""Differences of the Tokenformer study, paired by seed."""

from formerlab.statistics import student


def ends(name: str, differences: dict[int, float]) -> dict[str, float]:
    """Return the mean of differences by seed as `name`, with the ends of its 95 % Student t interval."""
    if not differences:
        return {}
    interval = student([differences[seed] for seed in sorted(differences)])
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
