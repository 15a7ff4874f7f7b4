"""Editing a module changes the code hash of exactly the jobs that use it."""

import ast
import shutil

import pytest

from formerlab.cache import Decay, Local
from formerlab.data import Files, TextData
from formerlab.evaluation.pruning.prune import PruneSweep
from formerlab.growth.stage import Growth
from formerlab.layers import DepthWeightedAverage, Mlp, Pattention
from formerlab.models import Decoder
from formerlab.plan import code
from formerlab.training.run import Run

PLAIN = Decoder()
DENSE = Decoder(depth=DepthWeightedAverage())
TOKENS = Decoder(projection=Pattention(), feedforward=Pattention())
MIXED = Decoder(projection=Pattention(), feedforward=Mlp())


def train(model, **keys):
    run = Run(study="s", name="r", model=model, **keys)
    return code.entries_of_training(run), (run,)


JOBS = {
    "data": (("formerlab.data.text.prepare",), (TextData(),)),
    "data of files": (("formerlab.data.text.prepare",), (TextData(source=Files(train=("a",))),)),
    "train plain": train(PLAIN),
    "train dense": train(DENSE),
    "train tokens": train(TOKENS),
    "train mixed": train(MIXED),
    "train continued": train(PLAIN, init="p"),
    "train grown": train(TOKENS, init="p", growth=Growth()),
    "zeroshot plain": (("formerlab.evaluation.language.zeroshot",), (PLAIN,)),
    "zeroshot dense": (("formerlab.evaluation.language.zeroshot",), (DENSE,)),
    "prune local": (("formerlab.evaluation.pruning.prune",), (PruneSweep(policies=(Local(),)), PLAIN)),
    "prune decay": (("formerlab.evaluation.pruning.prune",), (PruneSweep(policies=(Decay(),)), PLAIN)),
    "draw decay_alpha": (("formerlab.report.figures.decay.loss", "formerlab.report.write"), ()),
    "draw denseformer_depth": (("formerlab.report.figures.denseformer.loss", "formerlab.report.write"), ()),
    "draw decay_table": (("formerlab.report.tables.decay.loss", "formerlab.report.write"), ()),
}


def jobs(*prefixes):
    return {name for name in JOBS if name.startswith(prefixes)}


TRAIN, EVALUATED = jobs("train"), jobs("zeroshot", "prune")
MODELS = TRAIN | EVALUATED


class Package:
    """A copy of the package, in which a test computes hashes with one edited file.

    Only cached results that can depend on the edited module are dropped, because parsing all modules for each test
    takes too long.
    """

    def __init__(self, root, patch):
        self.root = root
        self.caches = []
        for name, function in vars(code).items():
            if hasattr(function, "cache_clear"):
                patch.setattr(code, name, self.cached_function(function.__wrapped__))
        self.hashes_before = self.hashes()

    def cached_function(self, function):
        cache = {}
        self.caches.append(cache)

        def cached(*key):
            if key not in cache:
                cache[key] = function(*key)
            return cache[key]

        return cached

    def hashes(self):
        return {name: code.code_hash(*entries, specs=specs) for name, (entries, specs) in JOBS.items()}

    def drop_results_of(self, file):
        module = f"formerlab.{file.removesuffix('.py').replace('/', '.')}"
        for cache in self.caches:
            if file.endswith("__init__.py"):
                cache.clear()  # names are resolved through packages
            # results that depend on several modules have longer keys and are dropped too
            for key in [key for key in cache if key == (module,) or len(key) > 1]:
                del cache[key]

    def changed_by(self, file, edit):
        """Return the jobs whose hash an edit changes, then undo the edit."""
        path = self.root / file
        text = path.read_text()
        assert edit(text) != text
        path.write_text(edit(text))
        self.drop_results_of(file)
        try:
            hashes_after = self.hashes()
        finally:
            path.write_text(text)
            self.drop_results_of(file)
        return {name for name in JOBS if self.hashes_before[name] != hashes_after[name]}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    root = tmp_path_factory.mktemp("src") / "formerlab"
    shutil.copytree(code.ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "ROOT", root)
        yield Package(root, patch)


def new_code(text):
    return f"{text}\n\nCHANGED = 1\n"


@pytest.mark.parametrize(
    ("file", "affected"),
    [
        ("layers/depth/dwa.py", {"train dense", "zeroshot dense"}),
        ("layers/pattention.py", {"train tokens", "train mixed", "train grown"}),
        ("layers/mlp.py", MODELS - {"train tokens", "train grown"}),
        # Mlp uses Linear, so a model with Pattention projections and an Mlp uses it too.
        ("layers/linear.py", MODELS - {"train tokens", "train grown"}),
        # DepthWeightedAverage is a Mixer, which is defined next to Identity.
        ("layers/depth/identity.py", MODELS),
        ("models/decoder.py", MODELS),
        ("growth/stage.py", {"train grown", "train continued"}),  # contains the spec of a continued run
        ("growth/width.py", {"train grown", "train continued"}),
        ("training/record.py", TRAIN),  # defines a spec, and functions that training calls
        ("evaluation/language/suites.py", EVALUATED),
        ("training/loop.py", TRAIN),
        ("tasks/language.py", TRAIN),
        ("tasks/window_losses.py", TRAIN | jobs("prune")),
        ("evaluation/language/questions.py", EVALUATED),
        ("evaluation/pruning/prune.py", jobs("prune")),
        ("cache/policies/policy.py", jobs("prune")),
        ("cache/policies/full.py", jobs("prune")),  # every sweep runs the full cache
        ("cache/policies/decay.py", jobs("prune")),  # `alphas` adds Decay to every sweep
        ("cache/policies/window.py", {"prune local"}),
        ("cache/policies/spatten.py", set()),
        ("data/text/embedded.py", jobs("data")),
        ("data/text/files.py", {"data of files"}),
        ("data/pairs/sources.py", set()),
        ("report/figures/decay/loss.py", {"draw decay_alpha"}),
        ("report/studies/pruning.py", {"draw decay_alpha", "draw decay_table"}),
        ("report/style.py", jobs("draw")),
        ("results/read.py", jobs("draw")),
        ("errors.py", set()),
        ("plan/code.py", set()),
        ("commands/stages.py", set()),
        ("training/load.py", set()),
    ],
)
def test_editing_a_module_changes_the_jobs_that_use_it(package, file, affected):
    assert package.changed_by(file, new_code) == affected


def test_indirect_imports_are_hashed(package):
    assert package.changed_by("files.py", new_code) == set(JOBS)


def test_the_registered_claims_are_hashed_for_figures_and_tables_that_show_them(package):
    changed = package.changed_by("report/claims/claims.yaml", lambda text: text + "\n")
    assert changed == {"draw denseformer_depth", "draw decay_table", "draw decay_alpha"}


def test_published_values_are_hashed_for_figures_that_show_them(package):
    changed = package.changed_by("report/published/published_results.csv", lambda text: text + "\n")
    assert changed == {"draw denseformer_depth"}


KIND = '    kind: Literal["dwa"] = "dwa"'
PERIOD = "self.period, layers + 1, self.period"
EDITS_WITHOUT_EFFECT = {
    "comment": lambda text: f"# A comment.\n{text}",
    "docstring": lambda text: text.replace('"""', '"""Said otherwise: ', 1),
    "attribute docstring": lambda text: text.replace(KIND, f'{KIND}\n    """New."""'),
    "format": lambda text: text.replace(PERIOD, "\n  self.period,  layers + 1, self.period,"),
    "comment on an import": lambda text: text.replace("import Layers", "import Layers  # why"),
}
EDITS_WITH_EFFECT = {
    "value": lambda text: text.replace("alpha[-1] = self.initial_weights[1]", "alpha[-1] = 2.0"),
    "index": lambda text: text.replace("i + 1, self.dilation", "i, self.dilation"),
    "default": lambda text: text.replace("dilation: Layers = 1", "dilation: Layers = 2"),
    "name": lambda text: text.replace("from torch import Tensor, nn", "from torch import nn, Tensor as T\nTensor = T"),
}


@pytest.mark.parametrize("edit", [*EDITS_WITHOUT_EFFECT, *EDITS_WITH_EFFECT])
def test_only_edits_of_code_change_the_hash(package, edit):
    expected = {"train dense", "zeroshot dense"} if edit in EDITS_WITH_EFFECT else set()
    assert package.changed_by("layers/depth/dwa.py", (EDITS_WITHOUT_EFFECT | EDITS_WITH_EFFECT)[edit]) == expected


NEW_MIXER = '''
from typing import Literal

from formerlab.layers.depth.identity import Mixer
from formerlab.spec import Spec


class Skip(Spec):
    """Nothing yet."""

    kind: Literal["skip"] = "skip"
'''


@pytest.mark.parametrize(
    ("file", "edit"),
    [
        ("layers/depth/union.py", lambda text: text.replace("Identity\n    |", "Identity\n    | Skip\n    |")),
        ("layers/__init__.py", lambda text: text.replace('"Rotary",', '"Rotary",\n    "Skip",')),
    ],
)
def test_adding_a_variant_changes_no_job(package, file, edit):
    (package.root / "layers/skip.py").write_text(NEW_MIXER)
    added = "from formerlab.layers.skip import Skip\n"
    changed = package.changed_by(file, lambda text: edit(text).replace("from formerlab", f"{added}from formerlab", 1))
    assert changed == set()


def test_importing_from_another_module_changes_the_hash(package):
    shutil.copy(package.root / "layers/score.py", package.root / "layers/other.py")
    changed = package.changed_by("layers/pattention.py", lambda text: text.replace("layers.score", "layers.other"))
    assert changed == {"train tokens", "train mixed", "train grown"}


def test_hashes_do_not_depend_on_the_python_version():
    """Data prepared with one Python version are not stale with another; 3.11, 3.12 and 3.13 give this text."""
    (statement,) = ast.parse("""def f(*a): return f"{', '.join(a)}\\n" """).body
    join = "Call(func=Attribute(value=Constant(value=', '), attr='join', ctx=Load()), args=[Name(id='a', ctx=Load())])"
    parts = f"[FormattedValue(value={join}, conversion=-1), Constant(value='\\n')]"
    head = "FunctionDef(name='f', args=arguments(vararg=arg(arg='a'))"
    assert code._text(statement) == f"{head}, body=[Return(value=JoinedStr(values={parts}))])"


def test_different_jobs_have_different_hashes(package):
    assert len(set(package.hashes_before.values())) == len(JOBS)
