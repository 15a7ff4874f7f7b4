"""Tables of the vision study (Tokenformer, arXiv:2410.23168, section 4.2).

In all of them the linear probe, a floor, is logistic regression on the pixels.
"""

from functools import partial

from formerlab.report.drawings import Table
from formerlab.report.vision import COLUMNS, comparison, published_accuracies

vision_sizes = Table(
    reads=("test.csv", "floors.csv", "run.json"),
    runs=("vit", "vit-wider", "tokenformer-matched", "tokenformer"),
    caption=(
        "ViT and Tokenformer, with as many parameters and with a third more, after Table 2 of Tokenformer "
        "(arXiv:2410.23168). Points of top-1 are against another run, paired by seed. Brackets: 95 % Student t "
        "interval over seeds; with one seed a paired bootstrap over the test images. A run that diverged counts as a "
        "uniform guess. Published is ImageNet-1K: compare differences, never levels."
    ),
    ours=partial(
        comparison,
        compared={"vit": "vit", "vit-wider": "vit", "tokenformer-matched": "vit", "tokenformer": "tokenformer-matched"},
    ),
    published=partial(published_accuracies, "Table 2"),
    columns=COLUMNS,
)


vision_scores = Table(
    reads=("test.csv", "run.json"),
    runs=("score-*", "tokenformer"),
    needs=("score-*",),
    caption=(
        "What stands in place of softmax in the parameter attention, after Table 4 of Tokenformer (arXiv:2410.23168). "
        "Its rows change activation and norm, and from the second to the third also their order, so the same two in "
        "the other order stand here too. GeLU with the L1 norm is in neither official code; ours is GeLU, the sum of "
        "absolute values, times n. Points are paired by seed; brackets: 95 % Student t interval over seeds, with one "
        "seed a paired bootstrap over images."
    ),
    ours=partial(
        comparison,
        compared={
            "score-exp-l1": "score-exp-l1",
            "score-gelu-l1": "score-exp-l1",
            "score-gelu-l2": "score-gelu-l1",
            "tokenformer": "score-gelu-l1",
        },
    ),
    published=partial(published_accuracies, "Table 4"),
    columns=COLUMNS,
)


vision_norms = Table(
    reads=("test.csv", "run.json"),
    runs=("norm-*", "tokenformer"),
    needs=("norm-*",),
    caption=(
        "Tokenformers whose block norms learn gain and bias, bias alone or nothing, after Table 5 of Tokenformer "
        "(arXiv:2410.23168); the final norm learns both in all of them. A gain common to all channels cannot matter in "
        "front of Pattention, only its variation can. Points are paired by seed; brackets: 95 % Student t interval "
        "over seeds, with one seed a paired bootstrap over images."
    ),
    ours=partial(
        comparison,
        compared={"norm-gain-bias": "norm-gain-bias", "norm-bias": "norm-gain-bias", "tokenformer": "norm-gain-bias"},
    ),
    published=partial(published_accuracies, "Table 5"),
    columns=COLUMNS,
)


vision_growth_table = Table(
    reads=("test.csv", "floors.csv", "run.json"),
    runs=("tokenformer*", "grown-*", "trained-on", "vit", "vit-dwa"),
    needs=("grown-*", "*-dwa"),
    caption=(
        "Tokenformers that grow on images, beside their parent trained on for the FLOPs of the stage and those trained "
        "from scratch, and models with averages over depth. Neither is published for images; the methods are those of "
        "Tokenformer (arXiv:2410.23168, section 3.3) and DenseFormer (arXiv:2402.02622). Points are paired by seed; "
        "brackets: 95 % Student t interval over seeds, with one seed a paired bootstrap over images."
    ),
    ours=partial(
        comparison,
        compared={
            "tokenformer-small": "tokenformer",
            "tokenformer": "tokenformer",
            "tokenformer-short": "tokenformer",
            "grown-random-sqrt": "tokenformer",
            "grown-zero-keep": "tokenformer",
            "trained-on": "tokenformer",
            "tokenformer-dwa": "tokenformer",
            "vit": "vit",
            "vit-dwa": "vit",
        },
    ),
    columns=COLUMNS,
)
