"""Write a figure as PDF, PNG and the rows it shows; the same rows give the same bytes."""

from pathlib import Path
from types import ModuleType

import matplotlib
from pandas import DataFrame
from pandas.api.types import is_numeric_dtype

from formerlab.files import replacing
from formerlab.report.figures import Drawing
from formerlab.report.figures._style import SETTINGS, empty
from formerlab.results.read import Results


def write_figure(drawing: Drawing, module: ModuleType, results: Results, out: Path) -> list[Path]:
    """Draw with `module.draw(module.data(results))`; without rows of ours, the picture says what is missing."""
    data: DataFrame = module.data(results)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # neither a user's matplotlibrc nor an earlier figure changes the bytes
        matplotlib.rcParams.update(SETTINGS)
        if data.empty or not (data["source"] == "ours").any():
            what = f"the rows {drawing.name} needs ({', '.join(drawing.reads)})"
            figure = empty(f"No finished run of study '{drawing.study}' at scale '{results.scale}' has {what} yet.")
        else:
            figure = module.draw(_without_formulas(data))
        width = figure.get_size_inches()[0]
        place = results.place(drawing.study, drawing.runs)
        figure.text(1 - 0.1 / width, 0.995, place, ha="right", va="top", fontsize=7, color="#555555")
        paths = [out / name for name in drawing.outputs]
        for path in paths[:2]:
            with replacing(path) as temporary:
                form = path.suffix[1:]
                stamp = {"CreationDate": None} if form == "pdf" else {"Software": None}
                figure.savefig(temporary, format=form, metadata=stamp)
    with replacing(paths[2]) as temporary:
        data.to_csv(temporary, index=False, lineterminator="\n")
    return paths


def _without_formulas(data: DataFrame) -> DataFrame:
    """Return rows in whose texts a dollar is a dollar: what stands between two, matplotlib would read as a formula."""
    plain = data.copy()
    for name in data:
        if not is_numeric_dtype(data[name]):
            plain[name] = [value.replace("$", r"\$") if isinstance(value, str) else value for value in data[name]]
    return plain
