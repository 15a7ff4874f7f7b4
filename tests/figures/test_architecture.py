"""Drawings of what is built are true of what is built."""

import pytest
from fixtures.rows import make_run, model, pattention

from formerlab.layers import DepthWeightedAverage
from formerlab.report.figures.denseformer.architecture import averages
from formerlab.report.figures.tokenformer.layer import tokenformer_layer
from formerlab.results.read import Results


@pytest.mark.parametrize(("dilation", "period"), [(1, 1), (4, 1), (1, 5), (4, 5), (2, 3)])
def test_arcs_are_those_of_the_mixer(dilation, period):
    mixer = DepthWeightedAverage(dilation=dilation, period=period)
    assert averages(16, dilation, period) == mixer.table(16)


def test_tokens_of_a_stage_are_what_its_run_has_more_than_its_parent(tmp_path):
    def sized(tokens):
        return model(projection=pattention(tokens)) | {"feedforward": pattention(4 * tokens)}

    growth = {"keys": "random", "tau": "sqrt", "optimizer": "fresh"}
    make_run(tmp_path, "tokenformer", "tokenformer-1", spec=sized(8))
    name = "grown-random-sqrt-2"
    make_run(tmp_path, "tokenformer", name, spec=sized(24), init="tokenformer-1", growth=growth)
    rows = tokenformer_layer.data(Results(tmp_path), tokenformer_layer.runs)
    added = {(row.stage, row.part): (row.tokens, row.added) for row in rows.itertuples()}
    assert added[1, "query"] == (8, 8)
    assert added[2, "output"] == (24, 16)
    assert added[2, "feed-forward"] == (96, 64)
