"""`import formerlab`: public names, import cost, and the examples of the README."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import formerlab
from formerlab.errors import UserError, missing_package
from tests.huggingface.tiny_models import build, save_with_tokenizer, tokens

ROOT = Path(__file__).parents[1]


def python(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_formerlab_loads_no_module_and_no_import_hook():
    heavy = "{'torch', 'transformers', 'timm', 'pydantic', 'numpy', 'logging'}"
    use = f"""
import sys
finders, hooks = list(sys.meta_path), list(sys.path_hooks)
import formerlab
assert (sys.meta_path, sys.path_hooks) == (finders, hooks)
print(sorted({heavy} & sys.modules.keys()), sorted(set(formerlab.__all__) - set(dir(formerlab))))
print([name for name in sys.modules if name.startswith('formerlab')])"""
    assert python(use) == "[] []\n['formerlab']\n"


def test_type_checking_imports_match_the_public_names():
    tree = ast.parse(Path(formerlab.__file__).read_text())
    (type_checking_block,) = [node for node in tree.body if isinstance(node, ast.If)]
    module_by_name = {alias.name: node.module for node in type_checking_block.body for alias in node.names}
    assert sorted(module_by_name) == sorted(formerlab.__all__)
    for name, module in module_by_name.items():
        assert getattr(formerlab, name) is getattr(importlib.import_module(module), name)


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="module 'formerlab' has no attribute 'growth_of_trees'"):
        formerlab.growth_of_trees  # noqa: B018
    assert importlib.import_module("formerlab.errors").UserError is UserError


def examples(page, heading=""):
    """Return the Python code blocks below a heading of a page."""
    section = (ROOT / page).read_text().partition(heading)[2].partition("\n## ")[0] if heading else None
    return re.findall(r"^```python\n(.*?)^```", section or (ROOT / page).read_text(), re.M | re.S)


def test_the_readme_examples_are_short_and_print_the_documented_output(capsys, monkeypatch):
    """The model has the layers, heads and width of SmolLM2-135M.

    The fake tokenizer returns as many tokens as the tokenizer of SmolLM2-135M.
    """
    build("llama")  # makes sure that models of transformers can be imported
    import transformers

    sizes = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    config = transformers.LlamaConfig(**sizes, vocab_size=1000, intermediate_size=16)
    model = transformers.LlamaForCausalLM(config)
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda name, dtype: model.to(getattr(torch, dtype))
    )
    inputs = {"input_ids": tokens(1, 501)}
    tokenizer = lambda text, return_tensors: inputs  # noqa: E731
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: tokenizer)
    blocks, results = examples("README.md"), {}
    assert len(blocks) == 2
    for block in blocks:
        assert len([line for line in block.splitlines() if line]) <= 13
        exec(block, results)
    documented_output = re.findall(r"# prints: (.*)$", "".join(blocks), re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == documented_output
    assert [len(rows) for rows in results["mixer"].alphas.values()] == [2, 3, 4, 5, 6, 7]


def test_the_pruning_page_begins_with_a_complete_example(tmp_path, capsys):
    """A small saved model replaces the model of the hub."""
    folder = save_with_tokenizer(tmp_path)
    (block,) = examples("docs/pruning.md")
    exec(block.replace("HuggingFaceTB/SmolLM2-135M", str(folder)), {})
    documented_output = re.findall(r"^(\w+): (\d+) bytes", (ROOT / "docs/pruning.md").read_text(), re.MULTILINE)
    printed = re.findall(r"^(\w+): (\d+) bytes", capsys.readouterr().out, re.MULTILINE)
    assert [kind for kind, _ in printed] == [kind for kind, _ in documented_output]
    for (_, full), (_, pruned), (_, other) in (printed, documented_output):
        assert int(pruned) == int(other) < int(full)


def test_the_example_of_docs_parts_prints_the_documented_output(capsys):
    (block,) = examples("docs/parts.md")
    exec(block, {})
    assert f"\n```\n{capsys.readouterr().out}```\n" in (ROOT / "docs/parts.md").read_text()


def run_without(package, code):
    """Run code in a process in which a package cannot be imported; return the finished process."""
    code_without_package = f"import sys; sys.modules[{package!r}] = None\n{code}"
    return subprocess.run([sys.executable, "-c", code_without_package], capture_output=True, text=True)


def test_an_import_error_without_a_module_name_keeps_its_message():
    assert missing_package(ModuleNotFoundError("no LlamaModel")) == "cannot be imported: no LlamaModel"


def test_a_missing_package_gives_one_line_with_its_extra(tmp_path):
    result = run_without("transformers", "import formerlab; formerlab.prune")
    assert result.stderr.splitlines()[-1] == (
        "ImportError: formerlab.prune needs the package transformers, which is not installed; "
        "pip install 'formerlab[prune]' installs it"
    )
    program = "from formerlab.__main__ import main; sys.exit(main(['export-huggingface', '.', '--out', 'out']))"
    result = run_without("transformers", program)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("error: this needs the package transformers, which is not installed; pip install")
