"""A checkout that was moved or copied runs its own code, not that of the old place."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from formerlab.errors import UserError
from formerlab.plan.locate import ensure_plan

ROOT = Path(__file__).parents[1]
TOOL = "import formerlab, sys\nprint(sys.prefix, formerlab.__file__, *sys.argv[1:], sep=chr(10))\n"
SHORT, LONG = "#!{python}\n", "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
"""Both forms in which pip begins a script."""


@pytest.fixture
def home(tmp_path):
    """A checkout with an environment as pip leaves it, and then as the set-up does."""
    home = tmp_path / "home"
    environment = home / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (home / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/relocate.py", home / "scripts")
    (home / "src/formerlab").mkdir(parents=True)
    (home / "src/formerlab/__init__.py").touch()
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "__editable__.formerlab-0.1.0.pth").write_text(f"{home / 'src'}\n")
    for name, form in (("tool", SHORT), ("other", LONG)):
        (environment / "bin" / name).write_text(form.format(python=environment / "bin/python") + TOOL)
        (environment / "bin" / name).chmod(0o755)
    set_up(home)
    return home


def set_up(checkout):
    words = [checkout / ".venv/bin/python", checkout / "scripts/relocate.py", ".venv"]
    subprocess.run(words, cwd=checkout, check=True, capture_output=True)


def said(*words):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()


@pytest.mark.parametrize("place", [shutil.copytree, shutil.move], ids=["copied", "moved"])
@pytest.mark.parametrize("tool", ["tool", "other"])
def test_its_tools_run_its_own_code(place, tool, home, tmp_path):
    there = tmp_path / "a new place"
    place(home, there, **({"symlinks": True} if place is shutil.copytree else {}))
    own = [str(there / ".venv"), str(there / "src/formerlab/__init__.py"), "two words"]
    assert said(there / ".venv/bin" / tool, "two words") == own
    set_up(there)
    assert said(there / ".venv/bin" / tool, "two words") == own
    assert said("bash", "-c", f"source '{there}/.venv/bin/activate' && {tool} 'two words'") == own


def test_another_checkouts_environment_is_refused(home):
    with pytest.raises(UserError, match=r"home: the active environment runs the code in .*; run `make setup` here"):
        ensure_plan(home, {})
