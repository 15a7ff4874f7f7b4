"""A small data set on disk, written by the stage `data`, and an uninterrupted run."""

from pathlib import Path

import jaxtyping
import numpy as np
import pytest
from small_runs import RUN, VOCABULARY, train_run

from formerlab.data import BytePairs, Files, TextData, prepare

TEXT = "the cat sat on a mat and the dog ran to an old house by the river where many birds sing"


@pytest.fixture(autouse=True)
def _shapes_checked_in_golden_runs(request, monkeypatch):
    """Check shapes only in the golden runs, which cover all models and tasks. Checks take a third of the time."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", request.path.stem != "test_golden_trajectories")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    random = np.random.default_rng(0)
    lines = [" ".join(random.choice(TEXT.split(), 8)) for _ in range(120)]
    (folder / "lines.txt").write_text("\n".join(lines))
    source = Files(paths=(str(folder / "lines.txt"),), documents="line")
    spec = TextData(source=source, tokenizer=BytePairs(vocabulary=VOCABULARY), valid_share=0.1, test_share=0.1)
    prepare("text", spec, folder / "data")
    return folder / "data"


@pytest.fixture(scope="session")
def finished_run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the small run, trained without interruption; tests must not change it."""
    out = tmp_path_factory.mktemp("finished")
    train_run(RUN, data, out)
    return out
