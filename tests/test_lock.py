"""The lock files: they cover what pyproject.toml asks for, and any build of torch satisfies it."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [
    Requirement(line)
    for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in group
    if not line.startswith("formerlab[")  # an extra of another's packages
]
LOCKED = [
    Requirement(line.split("#")[0].strip())
    for lock in ("requirements.lock", "requirements-released.lock")
    for line in (ROOT / lock).read_text().splitlines()
    if line.split("#")[0].strip()
]
PINS = {canonicalize_name(pin.name): pin for pin in LOCKED}


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_every_dependency_is_pinned_within_its_range(asked: Requirement) -> None:
    pin = PINS[canonicalize_name(asked.name)]
    assert asked.specifier.contains(version(pin), prereleases=True), "run `make lock`"
    assert pin.marker is None or all(pin.marker.evaluate(machine) for machine in machines())


def test_pins_are_exact_and_unique() -> None:
    assert all(re.fullmatch(r"==[^=*]+", str(pin.specifier)) for pin in LOCKED)
    assert len(PINS) == len(LOCKED)


def test_cpu_builds_of_torch_satisfy_the_lock() -> None:
    assert PINS["torch"].specifier.contains(version(PINS["torch"]).public + "+cpu")
    assert not [name for name in PINS if name.startswith(("nvidia", "cuda"))]


def version(pin: Requirement) -> Version:
    (only,) = pin.specifier
    return Version(only.version)


def machines() -> list[dict[str, str]]:
    """The environments that the lock promises to serve, as far as its markers ask."""
    return [
        {"python_full_version": f"{python}.0", "platform_machine": machine, "sys_platform": "linux"}
        for python in ("3.11", "3.12", "3.13")
        for machine in ("x86_64", "aarch64")
    ]
