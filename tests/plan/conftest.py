"""A small project of its own, so that no test depends on what the studies of the repository say today."""

from pathlib import Path

import pytest
import yaml

from formerlab.errors import UserError
from formerlab.plan.build import build_plan

CONFIG = """
scale: smoke
studies: [small]
"""

SCALE = """
description: tiny
seeds: [0, 1]
data:
  text:
    source: {kind: embedded, packages: [numpy]}
    tokenizer: {kind: bpe, vocabulary: 300}
    questions: 4
defaults:
  model: {layers: 2, width: 16, heads: 2}
  task: {context: 32, batch: 4}
  optimizer: {lr: 1.0e-3}
  steps: 20
studies:
  small:
    defaults: {schedule: {kind: constant}}
    runs:
      parent: {model: {projection: {tokens: 8}}}
      child: {model: {projection: {tokens: 16}}}
      "deep-{layers}": {grid: {layers: [3, 4]}}
    prune:
      plain: {windows: 4}
"""

STUDY = """
title: Small
paper: none
question: Is it small?
defaults:
  model: {tied: false}
runs:
  plain: {model: {projection: {kind: linear}}}
  parent: {model: {projection: {kind: pattention}}}
  child:
    init: parent
    model: {projection: {kind: pattention}}
    growth: {keys: zero, tau: keep}
  "deep-{layers}": {model: {layers: "{layers}"}}
zeroshot: [plain]
prune:
  plain: {budgets: [0.4]}
"""


class Project:
    """A folder with config.yaml and workflow, the way to change it, and the plan of it."""

    config = "config.yaml"
    scale = "workflow/scales/smoke.yaml"
    study = "workflow/studies/small.yaml"

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in ((self.config, CONFIG), (self.scale, SCALE), (self.study, STUDY)):
            self.write(name, text)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def lay_over(self, name, text):
        """Change keys of a file: mappings are merged, everything else is replaced, null removes a key."""
        tree = yaml.safe_load((self.root / name).read_text())
        self.write(name, yaml.safe_dump(_merged(tree, yaml.safe_load(text)), sort_keys=False))

    def plan(self, **given):
        return build_plan(self.root, given)

    def run(self, name="plain", seed=0, **given):
        """Return the resolved spec of a run."""
        return self.plan(**given)["train"][f"small/{name}/seed{seed}"]["spec"]

    def mistake(self, **given):
        """Return the one line that refuses the configuration."""
        with pytest.raises(UserError) as caught:
            self.plan(**given)
        return str(caught.value)


def _merged(below, above):
    merged = {key: value for key, value in below.items() if above.get(key, value) is not None}
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        elif value is not None:
            merged[key] = value
    return merged


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)
