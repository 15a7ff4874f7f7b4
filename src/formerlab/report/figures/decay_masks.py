"""Which keys each query sees under each policy (Decay article, Fig 3)."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._pruning import ordered
from formerlab.report.figures._runs import missing_note
from formerlab.report.figures._style import canvas, look
from formerlab.results.read import Results

STUDY = "decay"
READS = ("prune_pictures.csv", "run.json")
RUNS = ("decoder",)
CAPTION = (
    "Which keys (across) each query (down) sees in one head of one trained decoder, at equal budgets; after Fig. 3 of "
    "the Decay article. All policies choose from the attention of the same unpruned pass. Ideal takes the best keys "
    "of each row and may take a dropped one back, which no cache can. To see: vertical lines are keys kept for long, "
    "the diagonal are recent ones; H2O keeps early keys once it has them, a small alpha lets them go."
)
WANTED = ("Ideal", "Local", "H2O", "Decay, alpha 0.2", "Decay, alpha 0.8")


def data(results: Results) -> DataFrame:
    """Return the masks of the first seed, a row per policy and query."""
    rows = results.rows("prune_pictures.csv", STUDY, RUNS)
    if rows.empty:
        return DataFrame(columns=["source"])
    rows = rows[rows["seed"] == rows["seed"].min()]
    return ordered(rows).sort_values(["budget", "query"], kind="stable").assign(source="ours")


def draw(data: DataFrame) -> Figure:
    """Draw a row of panels per budget."""
    names = [name for name in WANTED if name in set(data["arm"])]
    budgets = sorted(data["budget"].unique())
    panels = [(budget, name) for budget in budgets for name in names]
    tokens = int(data["query"].max()) + 1
    place = f"layer {data['layer'].iloc[0] + 1}, head {data['head'].iloc[0] + 1}, seed {data['seed'].iloc[0]}"
    notes = [f"First {tokens} tokens of the held-out text, {place}. A query sees its own key on top of the budget."]
    figure, axes = canvas(
        [1.75] * len(panels), [*notes, *missing_note(names, list(WANTED))], height=1.75, right=0.3, columns=len(names)
    )
    for panel, (budget, name) in zip(axes, panels, strict=True):
        rows = data[(data["budget"] == budget) & (data["arm"] == name)].sort_values("query")
        seen = np.array([[int(cell) for cell in kept] for kept in rows["kept"]])
        colour = look(str(rows["policy"].iloc[0]).split()[0]).colour
        panel.imshow(seen, cmap=ListedColormap(["white", colour]), vmin=0, vmax=1, interpolation="nearest")
        panel.grid(visible=False)
        panel.set_title(f"{name}: {100 * budget:g} %", fontsize=8.5)
        panel.set_xticks([0, tokens // 2, tokens - 1])
        panel.set_yticks([0, tokens // 2, tokens - 1] if name == names[0] else [])
        if name == names[0]:
            panel.set_ylabel("query")
        if budget == budgets[-1]:
            panel.set_xlabel("key")
    return figure
