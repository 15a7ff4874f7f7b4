"""The pre-registered claims of the four papers, and the rule by which result rows decide each of them."""

from formerlab.claims.book import VERSION_HASHES, Claim, Protocol, read_claims
from formerlab.claims.verdict import Verdict, judge, judge_all

__all__ = ["VERSION_HASHES", "Claim", "Protocol", "Verdict", "judge", "judge_all", "read_claims"]
