"""Labels of attention maps."""

import pandas as pd

from formerlab.report.figures.transformer import draw_attention

END = "<|endoftext|>"


def test_a_row_of_cross_attention_is_labelled_with_the_piece_it_predicts():
    """The decoder first reads the end-of-sentence piece, and from every piece it predicts the next one."""
    target, source = [END, "A", " man"], ["Ein", " Mann"]
    pieces = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    rows = [
        {
            "part": part,
            "head": 0,
            "query": q,
            "key": k,
            "query_token": query_token,
            "key_token": key_token,
            "weight": 0.5,
        }
        for part, (query_tokens, key_tokens) in pieces.items()
        for q, query_token in enumerate(query_tokens)
        for k, key_token in enumerate(key_tokens)
    ]
    figure = draw_attention(pd.DataFrame(rows).assign(run="base", seed=0, layer=0))
    large, *small = figure.axes
    assert [label.get_text() for label in large.get_yticklabels()] == ["A", "␣man", "</s>"]
    assert [label.get_text() for label in large.get_xticklabels()] == ["Ein", "␣Mann"]
    assert [panel.get_title() for panel in small[:3]] == ["encoder", "decoder", "cross"]
