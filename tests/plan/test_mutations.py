"""Randomly changed configurations give a plan or an error of one line.

Changes are sampled with fixed seeds. They edit config.yaml, the scale, the study or an overlay. Some runs of the study
are part of the scale, one is left out, and one has no grid values.
"""

import copy
import json
from random import Random

import pytest
import yaml
from fixtures.project import CONFIG, SCALE, STUDY

from formerlab.errors import UserError
from formerlab.plan import build, sources

MORE = {
    "config.yaml": """
        overlay: mine.yaml
        seeds: [0]
        threads: 2
        results: results
        figures: figures
        tracking_uri: sqlite:///mlflow.db
        data: {text: {max_bytes: 100000}}
        hardware: {CPU: {utilisation: 0.5}}
        set: {small.log_every: 7}
    """,
    "mine.yaml": """
        small: {optimizer: {lr: 1.0e-3, weight_decay: 0.1}, runs: {plain: {steps: 5}}}
        study.small.measure.prune.alphas: [0.5]
        scale: {threads: 1, data: {text: {valid_share: 0.1}}}
    """,
    "workflow/scales/smoke.yaml": """
        memory_mb: 1000
        runtime_minutes: 60
        data: {other: {source: {kind: embedded}, tokenizer: {kind: of, data: text}, max_held_out_bytes: 99}}
        studies: {small: {only: [plain, parent, child, "deep-*"]}}
    """,
    "workflow/studies/small.yaml": """
        runs:
          left-out:
            model: {width: 16, heads: 2, position: {kind: rotary, fraction: 0.5, base: 100.0}, dropout: 0.1}
            task: {batch: 4, accumulate: 2}
            optimizer: {lr: 0.01, beta1: 0.9, eps: 1.0e-8, clip: 1.0, mixing_lr_factor: 2.0}
            schedule: {kind: onecycle, warmup: 0.1, start_division: 10.0}
            steps: 3
          "no-values-{x}": {model: {layers: "{x}", depth: {kind: dwa, dilation: 2, period: 1}}, steps: 9}
        measure:
          prune:
            runs: [plain]
            by_run:
              left-out:
                {budgets: [0.4, 3], alphas: [0.1], windows: 4, policies: [{kind: decay, alpha: 0.2, recent: 0.5}]}
          speed: {runs: [plain], repetitions: 5, training_steps: 2}
          decode: {runs: [plain], lengths: [8], batches: [1], budgets: [0.4]}
          flow: {runs: [left-out], windows: 8, shares: [0.0, 0.5]}
          translate: {by_run: {left-out: {beam: 2, alpha: 0.6, extra: 3}}}
        claims: {some: {arms: {one: {run: plain, policy: decay, alpha: 0.3, recent: 0.1, budget: 0.4}}}}
    """,
}
VALUES = [
    *(None, "", " ", "many", -1, 0, 1, 10**12, 1e12, -1e12, -0.5, 1e-300, float("nan"), float("inf"), 10**400, True),
    *([], {}, [None], ["x"], [[1]], {"x": 1}, {"kind": "x"}, {"kind": None}, {"a": {"b": {"c": 1}}}, {1: 2}),
    *("/", "..", "~", "../../x", "a\nb", "\x00", "x" * 2000, "1e-3", "{x}", "{", "*", "[", "ftp://x", "http://u:p@h/"),
]
KEYS = ["kind", "runs", "grid", "set", "a.b", "", "__proto__", "x" * 300]
"""Keys that mutations add or replace."""


def merged(below, above):
    both = isinstance(below, dict) and isinstance(above, dict)
    return below | {key: merged(below.get(key), value) for key, value in above.items()} if both else above


@pytest.fixture(scope="module")
def files():
    files = {"config.yaml": CONFIG, "workflow/scales/smoke.yaml": SCALE, "workflow/studies/small.yaml": STUDY}
    return {name: merged(yaml.safe_load(files.get(name, "{}")), yaml.safe_load(text)) for name, text in MORE.items()}


@pytest.fixture(scope="module")
def plan_error(files, tmp_path_factory):
    """Return a function that plans the given files and returns the error message, or "" if planning succeeds."""
    root, trees = tmp_path_factory.mktemp("mutations"), {}

    def read(_, file):
        if isinstance(tree := trees.get(file), dict):
            return tree
        raise UserError(f"{file}: got {tree!r}; write keys and values")

    def plan_error(changed):
        trees.clear()
        trees.update(changed)
        try:
            json.dumps(build.build_plan(root, {}), allow_nan=False)
        except UserError as error:
            return str(error)
        return ""

    with pytest.MonkeyPatch.context() as patch:
        (root / "workflow/studies").mkdir(parents=True)
        (root / "workflow/scales").mkdir()
        (root / "workflow/studies/small.yaml").touch()
        (root / "workflow/scales/smoke.yaml").touch()
        patch.setattr(build, "catalogue", dict)
        patch.setattr(sources, "read_yaml", read)
        assert plan_error(files) == ""
        yield plan_error


def paths(tree, prefix=()):
    """Return the paths of all nodes of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path for key, value in items for path in ((*prefix, key), *paths(value, (*prefix, key)))]


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def mutated(files, random):
    changed = copy.deepcopy(files)
    tree = changed[random.choice(list(changed))]
    *above, key = random.choice(paths(tree))
    node = at(tree, above)
    match random.randrange(10):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[random.choice([*KEYS, f"{key}x"])] = node.pop(key)
        case 2:
            node[key] = copy.deepcopy(at(tree, random.choice(paths(tree))))
        case _:
            node[key] = random.choice(VALUES)
    return changed


@pytest.mark.parametrize("seed", range(2))
def test_a_mutation_gives_a_plan_or_one_line_with_a_file(seed, files, plan_error):
    random, refused = Random(seed), 0
    for _ in range(40):
        line = plan_error(mutated(files, random))
        assert line.isprintable()
        assert len(line) < 2500
        assert not line or line.startswith((*files, "workflow/", "hardware table: ", "scale.hardware: ")), line
        refused += bool(line)
    assert refused > 20
