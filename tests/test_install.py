"""The set-up installs torch from an index that answers, and otherwise from the configured index."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PINS = {"torch": "2.13.0", "torchvision": "0.28.0"}
TOOLS = ("bash", "mktemp", "rmdir", "sed", "timeout")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (folder / "lock").write_text("".join(f"{name}=={version}  # pinned\n" for name, version in PINS.items()))
    return folder


@pytest.fixture
def install(environment: Path, tmp_path: Path) -> Iterator[Callable[..., tuple[str, list[str]]]]:
    """Return a function that runs the script with a restricted PATH.

    The function returns the messages of the script and the installed distributions.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    for tool in TOOLS:
        (programs / tool).symlink_to(str(shutil.which(tool)))

    def run(**settings: str) -> tuple[str, list[str]]:
        command = ("bash", ROOT / "scripts/install_torch.sh", environment, environment / "lock")
        variables = {
            key: value for key, value in os.environ.items() if key not in ("TORCH_INDEX", "NO_PROXY", "no_proxy")
        }
        result = subprocess.run(
            command, env=variables | {"PATH": str(programs)} | settings, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        return result.stderr, sorted(path.name for path in environment.glob("lib/*/site-packages/torch*.dist-info"))

    yield run
    for folder in environment.glob("lib/*/site-packages/torch*.dist-info"):
        shutil.rmtree(folder)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a function that serves wheels with only metadata and returns the address of their index."""
    root = tmp_path / "index"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    Thread(target=server.serve_forever, daemon=True).start()

    def serve(**versions: str) -> str:
        for name, version in versions.items():
            folder, about = root / name, f"{name}-{version}.dist-info"
            folder.mkdir()
            file = folder / f"{name}-{version}-py3-none-any.whl"
            with zipfile.ZipFile(file, "w") as wheel:
                wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
                wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{about}/RECORD", "")
            (folder / "index.html").write_text(f'<a href="{file.name}">{file.name}</a>')
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    server.shutdown()
    server.server_close()


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """Return a socket bound to a free port. Connections are refused unless the test calls listen()."""
    with socket.socket() as unanswered:
        unanswered.bind(("127.0.0.1", 0))
        yield unanswered


def test_torch_and_torchvision_come_from_an_index_with_the_pinned_torch(install, index) -> None:
    address = index(torch="2.13.0+cpu", torchvision="0.28.0+cpu")
    installed = ["torch-2.13.0+cpu.dist-info", "torchvision-0.28.0+cpu.dist-info"]
    assert install(TORCH_INDEX=address) == (f"setup: torch 2.13.0 comes from {address}\n", installed)
    assert install(TORCH_INDEX="http://127.0.0.1:9") == ("", installed)  # a second call asks no index


@pytest.mark.parametrize("versions", [{}, {"torch": "2.12.1+cpu"}, {"torch": "12.13.0"}], ids=str)
def test_an_index_without_the_pinned_torch_is_skipped(install, index, versions) -> None:
    address = index(**versions)
    assert_fallback(address, *install(TORCH_INDEX=address))


@pytest.mark.parametrize("problem", ["refuses connections", "hangs"])
def test_an_index_that_does_not_answer_is_skipped_within_seconds(install, port, problem) -> None:
    if problem == "hangs":
        port.listen()
    address = f"http://127.0.0.1:{port.getsockname()[1]}"
    assert_fallback(address, *install(TORCH_INDEX=address))


def assert_fallback(address: str, output: str, installed: list[str]) -> None:
    assert output.startswith(f"setup: {address} does not answer or has no torch 2.13.0, so torch comes from the")
    assert (output.count("\n"), installed) == (1, [])


def test_without_a_gpu_the_index_of_cpu_builds_is_used(install, port) -> None:
    proxy = f"http://127.0.0.1:{port.getsockname()[1]}"
    assert_fallback("https://download.pytorch.org/whl/cpu", *install(https_proxy=proxy, HTTPS_PROXY=proxy))


@pytest.mark.parametrize(("program", "reason"), [("nvidia-smi", "NVIDIA GPU found"), ("sbatch", "Slurm found")])
def test_with_gpus_or_slurm_the_configured_index_is_used(install, tmp_path, program, reason) -> None:
    (tmp_path / "bin" / program).write_text("#!/bin/bash\necho 'GPU 0: NVIDIA H100'\n")
    (tmp_path / "bin" / program).chmod(0o755)
    output, installed = install()
    assert output.startswith(f"setup: {reason}, torch 2.13.0 comes from the configured package index")
    assert installed == []


@pytest.mark.parametrize(("target", "adds"), [("demo", False), ("figures", False), ("test", True), ("lint", True)])
def test_make_targets_install_the_development_tools_that_they_use(tmp_path, target, adds) -> None:
    command = ("make", "-n", target, f"VENV={tmp_path / 'new'}")
    plan = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "scripts/setup.sh" in plan
    assert ("requirements-develop.lock" in plan) is adds


def test_the_ci_workflow_calls_existing_targets_on_the_supported_pythons() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())
    matrix = workflow["jobs"]["make"]["strategy"]["matrix"]
    targets = {*matrix["target"], *(job["target"] for job in matrix["include"])}
    named = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets == {"test", "lint", "docs", "test-oldest", "test-newest"} & named
    promised = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    assert matrix["python"] == [f"3.{minor}" for minor in range(8, 20) if f"3.{minor}" in promised]
