"""FLOPs of a forward pass against the length of the text (Tokenformer, arXiv:2410.23168, Fig 5)."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.formulas import Shape, shape_of
from formerlab.report.marks import Label, label_directly
from formerlab.report.style import BLACK, VERMILION, canvas, mark_published, widen
from formerlab.report.tokenformer import size_of
from formerlab.results.read import Results

STUDY = "tokenformer"
LENGTHS = tuple(2**power for power in range(7, 18))
_WIDTHS = (("124M", 768, 576), ("354M", 1416, 2140), ("757M", 2104, 4850))
"""Size, width of the Transformer, tokens of the Tokenformer of width 768 (Tables 8 and 9 of the paper)."""
_VOCABULARY = 50304


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per model and length."""
    rows = []
    for record in results.runs(STUDY, runs).drop_duplicates("run").to_dict("records"):
        family = "Tokenformer" if record["spec.model.projection.kind"] == "pattention" else "Transformer"
        rows += _rows("ours", family, str(size_of(record["run"])), shape_of(record), record["run"])
    for name, width, tokens in _WIDTHS:
        wide = Shape(12, width, _VOCABULARY, hidden=4 * width)
        rows += _rows("published", "Transformer", name, wide, f"Transformer {name}, d = {width}")
        grown = Shape(12, 768, _VOCABULARY, tokens, 4 * tokens)
        rows += _rows("published", "Tokenformer", name, grown, f"TokenFormer {name}, d = 768")
    return DataFrame(rows)


def _rows(source: str, family: str, size: str, shape: Shape, run: str) -> list[dict[str, object]]:
    shared = {"source": source, "family": family, "size": size, "run": run, "width": shape.width}
    return [
        shared | {"length": length, "flops": shape.flops(length), "token_token_flops": shape.token_token_flops(length)}
        for length in LENGTHS
    ]


def draw(data: DataFrame) -> Figure:
    """Draw our sizes left and the paper's right."""
    notes = ["Without the logits; rows are of whole texts. Attention counts the whole square, half of it masked."]
    missing = sorted({"Tokenformer", "Transformer"} - set(data.loc[data["source"] == "ours", "family"]))
    notes += [f"Missing, no finished runs: {', '.join(missing)}."] if missing else []
    figure, (left, right) = canvas([4.4, 4.4], notes, right=[0.95, 0.2])
    _draw_lines(left, data[data["source"] == "ours"])
    left.set_title("Ours: formula at the sizes of this scale")
    _draw_lines(right, data[data["source"] == "published"])
    mark_published(right, "formula at the sizes of Table 8")
    return figure


def _draw_lines(axes: Axes, rows: DataFrame) -> None:
    labels: list[Label] = []
    crowded = rows.loc[rows["family"] == "Tokenformer", "size"].nunique() > 3
    for (family, size), line in rows.groupby(["family", "size"], sort=False):
        wide = family == "Transformer"
        colour, style = (BLACK, "--") if wide else (VERMILION, "-")
        per_token = line["flops"] / line["length"]
        axes.plot(line["length"], per_token, style, color=colour, linewidth=1.3)
        name = f"{family} {size}, d = {line['width'].iloc[0]}"
        if crowded and not wide:  # their ends coincide
            if any(label.colour == colour for label in labels):
                continue
            name = f"Tokenformers, d = {line['width'].iloc[0]}"
        labels.append(Label(line["length"].iloc[-1], per_token.iloc[-1], name, colour))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("length of the text (tokens)")
    axes.set_ylabel("forward FLOPs per token")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1024:g}k" if value >= 1024 else f"{value:g}")
    widen(axes, 0.65)
    label_directly(axes, labels, size=7)


tokenformer_length = Plot(
    reads=("run.json",),
    runs=("transformer-[1-4]", "tokenformer-1", "grown-random-sqrt-[2-4]"),
    needs=("transformer-[1-4]",),
    caption=(
        "FLOPs of a forward pass against the length of the text, 2 N T + 4 L d T^2, after Fig. 5 of Tokenformer "
        "(arXiv:2410.23168), drawn per token so that the lines part: computed, not measured. To see: at equal "
        "parameters a Transformer that grows in width pays for its width in the token-token term, which a Tokenformer "
        "of fixed width does not; the two part where that term takes over. A Transformer that grew its feed-forward "
        "layer alone would keep the term too. Right: the same for the sizes of Table 8, of 12 layers, whose widths "
        "follow from its printed FLOPs."
    ),
    data=data,
    draw=draw,
)
