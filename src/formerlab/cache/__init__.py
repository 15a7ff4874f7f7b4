"""KV-cache pruning: eviction policies, their simulation by attention masks, and caches that evict.

`CachePolicy` is the union of all policies; to add a policy, write its class and add it to this union.
"""

from typing import Annotated

from pydantic import Field

from formerlab.cache.budget import Budget as Budget
from formerlab.cache.budget import resolve_budget as resolve_budget
from formerlab.cache.evicting import PrunedCache as PrunedCache
from formerlab.cache.kv import KVCache as KVCache
from formerlab.cache.measures import distance_to_ideal as distance_to_ideal
from formerlab.cache.measures import ideal_attention as ideal_attention
from formerlab.cache.one_shot import CompressedCache as CompressedCache
from formerlab.cache.policies.allocation import Chunks as Chunks
from formerlab.cache.policies.allocation import HeadAdaptive as HeadAdaptive
from formerlab.cache.policies.allocation import Pyramid as Pyramid
from formerlab.cache.policies.decay import Decay as Decay
from formerlab.cache.policies.expected import ExpectedAttention as ExpectedAttention
from formerlab.cache.policies.full import Full as Full
from formerlab.cache.policies.h2o import H2O as H2O
from formerlab.cache.policies.ideal import Ideal as Ideal
from formerlab.cache.policies.keydiff import KeyDiff as KeyDiff
from formerlab.cache.policies.knorm import Knorm as Knorm
from formerlab.cache.policies.random import Random as Random
from formerlab.cache.policies.sigmoid_window import SigmoidWindow as SigmoidWindow
from formerlab.cache.policies.snapkv import SnapKV as SnapKV
from formerlab.cache.policies.spatten import SpAtten as SpAtten
from formerlab.cache.policies.tova import TOVA as TOVA
from formerlab.cache.policies.window import Local as Local
from formerlab.cache.policies.window import StreamingLLM as StreamingLLM
from formerlab.cache.simulation import Simulation as Simulation
from formerlab.cache.simulation import simulate as simulate

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
    | SigmoidWindow
    | ExpectedAttention
    | Random
    | HeadAdaptive
    | Chunks
    | Pyramid
    | Ideal,
    Field(discriminator="kind"),
]
