"""Draw docs/rooms.svg: the rooms of the package, and the way of the data through them.

    python scripts/draw_rooms.py

The rooms are the rows of the first table in docs/architecture.md, from the top down; tests/test_rooms.py holds the
imports to it.
"""

import re
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/architecture.md"
DRAWN = ROOT / "docs/rooms.svg"

FILES = (
    ("config.yaml, workflow/", (), ("plan",), "integrations"),
    ("MLflow", ("tracking",), (), "tracking"),
    ("the plan: every job,\nits spec, its code, its cost", ("plan",), ("commands",), "plan"),
    ("figures, tables, claims", ("report",), (), "report"),
    ("rows", ("evaluation", "training"), ("report", "tracking"), "evaluation"),
    ("weights", ("training",), ("evaluation", "integrations"), "training"),
    ("tokens, images, pairs", ("data",), ("training", "evaluation"), "data"),
)
"""What lies between the stages: its name, the rooms that write it, those that read it, and beside which it is drawn."""
COLOURS = (
    ("#f3d9dc", ("commands",)),
    ("#e9e2f3", ("plan",)),
    ("#dcebd6", ("report", "tracking", "results")),
    ("#fbe8cd", ("tasks", "training", "evaluation")),
    ("#d6e6f4", ("kernels", "layers", "models", "growth", "cache", "integrations")),
    ("#eeeeee", ("data", "shared by all")),
)
STEP, WIDTH, LEFT = 1.0, 7.4, 10.2


def rooms() -> list[tuple[str, str]]:
    """Return (name, what it holds) of the rooms, from the top down."""
    table = PAGE.read_text(encoding="utf-8").partition("\n| room |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| (?:`(\w+)/`|(shared by all)) \| ([^|]+) \|", table, re.M)
    return [(room or ground, idea.strip().replace("`", "")) for room, ground, idea in found]


def draw(path: Path) -> None:
    """Draw the rooms as a stack, from which imports lead down, and beside them the files between the stages."""
    mpl.rcParams.update({"svg.hashsalt": "rooms", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})
    stack = rooms()
    heights = {room: STEP * (len(stack) - place) for place, (room, _) in enumerate(stack)}
    figure, axes = plt.subplots(figsize=(10, 0.42 * len(stack) + 0.6), layout="constrained")
    axes.set(xlim=(-0.2, 14.6), ylim=(0.3, STEP * len(stack) + 1.1))
    axes.axis("off")
    axes.text(0, STEP * len(stack) + 0.75, "Rooms: each imports only from rooms below it", weight="bold")
    axes.text(LEFT, STEP * len(stack) + 0.75, "Files between the stages", weight="bold")
    for room, idea in stack:
        colour = next(colour for colour, names in COLOURS if room in names)
        _box(axes, 0, heights[room], WIDTH, colour)
        axes.text(0.15, heights[room], room, weight="bold", va="center")
        axes.text(1.75, heights[room], idea, va="center", fontsize=8)
    for name, writers, readers, beside in FILES:
        middle = heights[beside]
        _box(axes, LEFT, middle, 4.2, "#ffffff")
        axes.text(LEFT + 2.1, middle, name, ha="center", va="center", fontsize=8)
        for writer in writers:
            _arrow(axes, (WIDTH, heights[writer] + 0.12), (LEFT, middle), "#b03030")
        for reader in readers:
            _arrow(axes, (LEFT, middle), (WIDTH, heights[reader] - 0.12), "#3060a0")
    axes.text(LEFT, 0.75, "red: writes", color="#b03030", fontsize=8)
    axes.text(LEFT + 1.8, 0.75, "blue: reads", color="#3060a0", fontsize=8)
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def _box(axes: Axes, left: float, middle: float, width: float, colour: str) -> None:
    shape = FancyBboxPatch(
        (left, middle - 0.39), width, 0.78, "round,pad=0,rounding_size=0.12", fc=colour, ec="#888888"
    )
    axes.add_patch(shape)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, color=colour, shrinkA=1, shrinkB=1))


if __name__ == "__main__":
    draw(DRAWN)
    print(DRAWN.relative_to(ROOT))
