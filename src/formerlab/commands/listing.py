"""The command list: cache policies, depth mixers and long-context tasks with their options."""

import argparse
from typing import Any

from formerlab.commands.context import add_command

KINDS = ("policies", "mixers", "tasks")


def add_parsers(commands: Any) -> None:
    """Add the command."""
    parser = add_command(commands, list_kinds, "list", configured=False)
    parser.add_argument("kind", nargs="?", choices=KINDS, help="default: all")


def list_kinds(arguments: argparse.Namespace) -> None:
    """List cache policies, depth mixers and long-context tasks with their options."""
    for kind in [arguments.kind] if arguments.kind else KINDS:
        print("\n".join({"policies": _policies, "mixers": _mixers, "tasks": _tasks}[kind]()))


def _policies() -> list[str]:
    from formerlab.cache import CachePolicy
    from formerlab.spec import variants

    title = "cache policies, such as `answer-tasks --policies \"decay alpha=0.2 sink=4\" 'pyramid(h2o) layers=30'`:"
    note = "  all except wrappers and simulation-only policies also take sink=COUNT recent=FRACTION protect=prompt"
    return [title, note, *(_line(policy, _pruning_time(policy)) for policy in variants(CachePolicy))]


def _pruning_time(policy: type[Any]) -> str:
    """Return when a policy prunes, or that it wraps another policy."""
    from formerlab.cache.policies.policy import OneShot

    if "policy" in policy.model_fields:
        return "wraps another policy"
    if issubclass(policy, OneShot):
        return "once, after the prompt"
    return "after every token" if policy().is_online else "simulation only"


def _mixers() -> list[str]:
    from formerlab.layers.depth.union import DepthMixer
    from formerlab.spec import variants

    return ["depth mixers (`model.depth.kind`):", *(_line(mixer) for mixer in variants(DepthMixer))]


def _tasks() -> list[str]:
    from formerlab.evaluation.pruning.long_context import TASKS

    title = "long-context tasks (`answer-tasks --tasks`; also generative tasks and groups of lm_eval):"
    return [title, *(f"  {name}  answers of at most {task.answer_tokens} tokens" for name, task in TASKS.items())]


def _line(spec: type[Any], pruning_time: str = "") -> str:
    """Return kind, options with defaults, time of pruning and first sentence of the description in one line."""
    from formerlab.cache.policies.policy import Protecting

    shared = Protecting.model_fields if issubclass(spec, Protecting) else {}
    options = []
    for name, field in spec.model_fields.items():
        if name == "kind" or (name in shared and field.default == shared[name].default):
            continue
        options.append(name.upper() if field.is_required() else f"{name}={field.default}")
    description = " ".join((spec.__doc__ or "").partition("\n\n")[0].split())
    return "  " + "  ".join(
        filter(None, [" ".join([spec.model_fields["kind"].default, *options]), pruning_time, description])
    )
