"""Speed and memory of decoding behind the longest prompt, for every cache."""

from pandas import DataFrame

from formerlab.report.figures._decode import decoding
from formerlab.results.read import Results

STUDY = "decay"
READS = ("decode.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "Decoding behind the longest prompt that was measured, with whole and pruned caches. Ratio: speed over that of "
    "Full, our whole cache, in the same repetition; in brackets: quartiles of the repetitions, no confidence interval. "
    "Cache: keys and values held, also as a share of Full's; book: scores and positions, which a pruned cache keeps "
    "beside them. Measured alone on the machine, in turns, on an untrained model of the run's shape: nothing learned "
    "matters to speed. A ratio on one machine says little about another, and one on a CPU nothing about a GPU."
)
_COLUMNS = (
    *("source", "run", "sequences", "length", "arm", "policy"),
    *("decoded_tokens_per_s", "decoded_tokens_per_s_low", "decoded_tokens_per_s_high"),
    *("speed_ratio", "speed_ratio_low", "speed_ratio_high"),
    *("cache_megabytes", "cache_share", "book_megabytes", "repetitions"),
)


def table(results: Results) -> DataFrame:
    """Return a row per run, number of sequences and cache."""
    rows = decoding(results, STUDY, RUNS)
    if rows.empty:
        return rows
    rows = rows[rows["length"] == rows.groupby(["run", "sequences"])["length"].transform("max")]
    rows = rows.rename(columns=lambda name: name.replace("tokens_per_s", "decoded_tokens_per_s"))
    rows = rows.assign(cache_megabytes=rows["cache_bytes"] / 1e6, book_megabytes=rows["book_bytes"] / 1e6)
    return rows.reindex(columns=list(_COLUMNS))
