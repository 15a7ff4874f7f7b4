"""The KV cache: policies that say which keys survive, their simulation by masks, and caches that really evict.

`CachePolicy` is the union that configurations choose from; a new policy is one class and its name here.
"""

from typing import Annotated

from pydantic import Field

from formerlab.cache.budget import Budget, resolve_budget
from formerlab.cache.compressed import CompressedCache
from formerlab.cache.kv import KVCache
from formerlab.cache.measures import distance_to_ideal, early_share
from formerlab.cache.policies.decay import Decay
from formerlab.cache.policies.expected import ExpectedAttention
from formerlab.cache.policies.full import Full
from formerlab.cache.policies.h2o import H2O
from formerlab.cache.policies.ideal import Ideal
from formerlab.cache.policies.keydiff import KeyDiff
from formerlab.cache.policies.knorm import Knorm
from formerlab.cache.policies.random import Random
from formerlab.cache.policies.snapkv import SnapKV
from formerlab.cache.policies.spatten import SpAtten
from formerlab.cache.policies.tova import TOVA
from formerlab.cache.policies.window import Local, StreamingLLM
from formerlab.cache.pruned import PrunedCache
from formerlab.cache.simulation import Simulation, simulate

CachePolicy = Annotated[
    Full
    | Local
    | StreamingLLM
    | H2O
    | SpAtten
    | Decay
    | TOVA
    | KeyDiff
    | Knorm
    | SnapKV
    | ExpectedAttention
    | Random
    | Ideal,
    Field(discriminator="kind"),
]

__all__ = [
    "H2O",
    "TOVA",
    "Budget",
    "CachePolicy",
    "CompressedCache",
    "Decay",
    "ExpectedAttention",
    "Full",
    "Ideal",
    "KVCache",
    "KeyDiff",
    "Knorm",
    "Local",
    "PrunedCache",
    "Random",
    "Simulation",
    "SnapKV",
    "SpAtten",
    "StreamingLLM",
    "distance_to_ideal",
    "early_share",
    "resolve_budget",
    "simulate",
]
