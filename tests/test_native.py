"""Kernels compiled at first use."""

import ctypes
import logging
import shutil
import subprocess
import sys

import pytest

from formerlab.kernels import native

SOURCE = 'extern "C" long twice(long x) { return 2 * x; }'
needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/formerlab"


@needs_compiler
def test_a_kernel_is_compiled_once(cache, monkeypatch):
    assert native.compile_library("twice", SOURCE).twice(21) == 42
    (library,) = cache.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(native.subprocess, "run", None)
        assert native.compile_library("twice", SOURCE).twice(4) == 8
    assert list(cache.iterdir()) == [library]
    assert native.compile_library("twice", SOURCE.replace("2 * x", "3 * x")).twice(1) == 3, "the source has changed"


@needs_compiler
def test_kernel_implementation_is_plain_without_a_working_compiler(monkeypatch, tmp_path):
    assert native.kernel_implementation().startswith("native, ")
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert native.kernel_implementation().startswith("plain, ")


@needs_compiler
def test_failed_compilation_leaves_no_file_and_logs_the_reason(cache, caplog):
    assert native.compile_library("wrong", "not C++") is None
    assert "wrong: plain torch replaces the native kernel (" in caplog.text
    assert list(cache.iterdir()) == []


def test_without_a_compiler_a_warning_is_logged(caplog, monkeypatch):
    monkeypatch.setattr(native, "find_compiler", lambda: None)
    with caplog.at_level(logging.WARNING):
        assert native.compile_library("twice", SOURCE) is None
    assert "no C++ compiler found" in caplog.text


def test_an_unwritable_cache_is_not_an_error(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert native.compile_library("twice", SOURCE) is None
    assert caplog.records


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="malloc is not glibc's")
def test_freed_memory_is_reused_up_to_a_size():
    """A tensor of 64 MiB that is freed and soon created again needs no new pages; by default it needs 16,384 each time.

    The test runs in a new process, because malloc would reuse a large free block that
    earlier tests left on the heap.
    """
    ended = subprocess.run([sys.executable, "-c", _NEW_PAGES], capture_output=True, text=True, check=True)
    new_pages, new_pages_with_reuse = map(int, ended.stdout.split())
    assert new_pages > 10_000
    assert new_pages_with_reuse < 1000


_NEW_PAGES = """
import resource
import torch
from formerlab.kernels import native

def new_pages():
    faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before

for largest in (2**25, 2**30):
    native.keep_memory(largest)
    print(min(new_pages() for _ in range(12)))
"""
