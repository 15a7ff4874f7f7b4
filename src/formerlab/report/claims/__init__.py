"""The pre-registered claims of the four papers, and the rule by which result rows decide each of them.

`claims.yaml` was fixed before any model was trained; `registry.py` reads it, and which runs stand for an arm (each
study's key `claims`); `judgement.py` evaluates its criteria, `rows.py` reads the rows, `verdict.py` judges,
`evaluation/exact/` computes what needs no training, and `table.py` writes claims.csv and claims.md.
"""
