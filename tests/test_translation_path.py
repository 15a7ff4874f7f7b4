"""All stages of translation in a small project: data, training, translating, tables and figures."""

import csv
import json
from pathlib import Path

import pytest
import yaml

from formerlab.__main__ import main

CONFIG = {"scale": "smoke", "studies": ["transformer"], "tracking_uri": ""}
SCALE = {
    "description": "tiny",
    "data": {
        "pairs": {
            "kind": "parallel",
            "source": {"kind": "embedded", "count": 160},
            "tokenizer": {"kind": "bpe", "vocabulary": 280},
            "valid_share": 0.05,
            "test_share": 0.05,
            "max_tokens": 64,
        }
    },
    "defaults": {"model": {"kind": "decoder", "embedding_std": 0.1}, "task": {"kind": "language_modeling", "batch": 4}},
}
STUDY = {
    "title": "Words",
    "paper": "none",
    "question": "Does it run?",
    "defaults": {
        "data": "pairs",
        "model": {"kind": "translator", "layers": 1, "width": 16, "heads": 2},
        "task": {"kind": "translation", "tokens": 256, "valid_pairs": 6, "average_last": 2, "average_every": 2},
        "steps": 6,
        "log_every": 2,
        "evaluate_every": 3,
    },
    "runs": {"base": {}, "longer": {"init": "base"}},
    "measure": {
        "translate": {"runs": ["base"], "splits": ["valid", "test"], "beam": 2, "extra": 4, "attention_sentences": 1},
        "complexity": {"runs": ["base"], "lengths": [32, 64], "widths": [8, 16], "repeats": 1},
    },
}
RUN, LONGER = "transformer/base/seed0", "transformer/longer/seed0"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a project in which every stage has run once."""
    root = tmp_path_factory.mktemp("project")
    for name, content in (
        ("config.yaml", CONFIG),
        ("workflow/scales/smoke.yaml", SCALE),
        ("workflow/studies/transformer.yaml", STUDY),
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert main(["plan", "--command-line", "{}", "--write", "plan.json"]) == 0
        patch.setenv("FORMERLAB_PLAN", "plan.json")
        for words in (["data", "pairs"], ["train", RUN], ["train", LONGER], ["translate", RUN], ["complexity", RUN]):
            assert main(words) == 0
        for job in json.loads(Path("plan.json").read_text())["draw"].values():
            assert main(["draw", *job["entries"]]) == 0
        assert main(["status"]) == 0
        patch.delenv("FORMERLAB_PLAN")
    return root


def rows(project, name):
    with (project / "results/live/smoke" / RUN / name).open() as file:
        return list(csv.DictReader(file))


def test_a_translation_run_writes_the_common_files(project):
    record = json.loads((project / "results/live/smoke" / RUN / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["spec"]["model"]["kind"] == "translator"
    assert record["spec"]["model"]["vocabulary"] == 280
    assert record["spec"]["model"]["context"] == 64 + 50
    assert int(rows(project, "train.csv")[-1]["tokens"]) == record["tokens"] > 0
    assert {row["step"] for row in rows(project, "eval.csv")} == {"0", "3", "6"}


def test_continued_training_reads_the_next_batches(project):
    record = json.loads((project / "results/live/smoke" / LONGER / "run.json").read_text())
    base, continued = record["read"]
    assert (base["run"], continued["run"]) == (RUN, LONGER)
    assert continued["start"] == base["end"]
    assert continued["end"]["steps"] == 12
    assert continued["tokens_cumulative"] == continued["tokens"] + base["tokens"]


def test_every_test_sentence_has_a_row_in_every_file(project):
    manifest = json.loads((project / "results/live/smoke/data/pairs/manifest.json").read_text())
    count = manifest["splits"]["test"]["pairs"]
    test = rows(project, "test.csv")
    assert [int(row["window"]) for row in test] == list(range(count))
    assert sum(int(row["tokens"]) for row in test) == manifest["splits"]["test"]["target_tokens"]
    translated = [row for row in rows(project, "translate.csv") if row["split"] == "test"]
    assert [int(row["reference_tokens"]) for row in translated] == [int(row["tokens"]) for row in test]
    scored = [row for row in rows(project, "bleu.csv") if row["split"] == "test"]
    assert len(scored) == 3 * count
    lines = (project / "results/live/smoke" / RUN / "translations.tsv").read_text().splitlines()
    assert len(lines) == len(rows(project, "translate.csv"))


def test_attention_rows_are_distributions(project):
    sums = {}
    for row in rows(project, "attention.csv"):
        key = tuple(row[name] for name in ("part", "layer", "head", "query"))
        sums[key] = sums.get(key, 0.0) + float(row["weight"])
    assert {key[0] for key in sums} == {"encoder", "decoder", "cross"}
    assert all(total == pytest.approx(1.0, abs=1e-4) for total in sums.values())


def test_signatures_and_tables_are_written(project):
    sidecar = json.loads((project / "results/live/smoke" / RUN / "translate.json").read_text())
    assert "tok:13a" in sidecar["signatures"]["sacrebleu"]
    figures = project / "figures/live/smoke"
    assert "published base" in (figures / "transformer_variations.md").read_text()
    assert "4.92" in (figures / "transformer_variations.csv").read_text()
    for name in ("transformer_attention", "transformer_complexity"):
        assert (figures / f"{name}.png").stat().st_size > 0
