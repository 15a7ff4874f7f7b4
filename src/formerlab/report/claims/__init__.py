"""The pre-registered claims of the four papers, and the rule by which result rows decide each of them.

`claims.yaml` was fixed before any model was trained. A claim has arms, for which `registry.py` names runs and `rows.py`
reads rows; a regime that the runs must meet (`regime.py`); a criterion over means with intervals (`quantity.py`), which
`verdict.py` evaluates; and a word, which `render.py` writes. `evaluation/exact/` computes the numbers of exact claims,
which need no training.
"""
