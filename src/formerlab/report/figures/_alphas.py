"""A panel of something against the forgetting factor alpha of Decay, with other policies as levels."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from pandas import DataFrame, Series, isna

from formerlab.report.figures._labels import Label, label_directly
from formerlab.report.figures._marks import points_with_bars
from formerlab.report.figures._pruning import PUBLISHED_ALPHA
from formerlab.report.figures._runs import missing_note
from formerlab.report.figures._style import GREY, look, widen

FULL_AND_H2O = {"full": "Full", "h2o": "H2O"}


def draw_alphas(axes: Axes, rows: DataFrame, value: str, levels: Mapping[str, str] = FULL_AND_H2O) -> None:
    """Draw Decay's column `value` by alpha, with bars from `<value>_low` to `_high`, and `levels` as dashed lines.

    `levels` are policies with their names. Call it last, when all else that the panel shows is drawn.
    """
    decay = rows[rows["policy"] == "decay"].sort_values("alpha")
    right, labels = 1.0, []
    axes.axvline(PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    if len(decay):
        right = decay["alpha"].iloc[-1]
        ends = decay[f"{value}_low"], decay[f"{value}_high"]
        points_with_bars(axes, decay["alpha"], decay[value], ends, look("decay"))
        labels.append(Label(right, decay[value].iloc[-1], "Decay", look("decay").colour))
    for policy, name in levels.items():
        level: Series[float] = rows.loc[rows["policy"] == policy, value]
        if len(level) and not isna(level.iloc[0]):
            axes.axhline(level.iloc[0], color=look(policy).colour, linestyle="--", linewidth=1)
            labels.append(Label(right, level.iloc[0], name, look(policy).colour))
    axes.set_xlabel("forgetting factor alpha")
    widen(axes, 0.03)
    label_directly(axes, labels)


def missing_levels(data: DataFrame) -> list[str]:
    """Return a note naming the levels without rows."""
    return missing_note(
        [FULL_AND_H2O[name] for name in set(data["policy"]) & set(FULL_AND_H2O)], [*FULL_AND_H2O.values()]
    )
