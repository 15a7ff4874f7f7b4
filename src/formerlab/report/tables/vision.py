"""Tables of the vision study (Tokenformer, arXiv:2410.23168, section 4.2)."""

from functools import partial

from formerlab.report.drawings import Table
from formerlab.report.vision import COLUMNS, comparison, published_accuracies

vision_sizes = Table(
    reads=("test.csv", "floors.csv", "run.json"),
    runs=("vit", "vit-wider", "tokenformer-matched", "tokenformer"),
    caption=(
        "ViT and Tokenformer, with as many parameters and with a third more, after Table 2 of Tokenformer "
        "(arXiv:2410.23168). Points are of top-1 accuracy, against another run and paired by seed. In brackets: 95 % "
        "Student t interval over seeds; with a single seed only the points have one, from a paired bootstrap over the "
        "test images, and the column interval says so. Calibration error: 15 bins. A run that diverged counts as a "
        "uniform guess. The linear probe, a floor, is logistic regression on the pixels. The published rows are "
        "ImageNet-1K: compare differences, never levels."
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
        "What stands in place of softmax in the parameter attention, after Table 4 of Tokenformer (arXiv:2410.23168): "
        "its rows change the activation and the norm, and from the second to the third also their order, so the same "
        "two in the other order stand here too. GeLU with the L1 norm exists in neither official code; ours is GeLU "
        "first, the sum of absolute values, times n. Points are of top-1 accuracy, against another run and paired by "
        "seed. In brackets: 95 % Student t interval over seeds; with a single seed only the points have one, from a "
        "paired bootstrap over the test images, and the column interval says so. Calibration error: 15 bins. A run "
        "that diverged counts as a uniform guess. The published rows are ImageNet-1K."
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
        "(arXiv:2410.23168); the final norm learns both in all of them. A gain common to all channels cannot matter "
        "in front of Pattention, only its variation can. Points are of top-1 accuracy, against another run and paired "
        "by seed. In brackets: 95 % Student t interval over seeds; with a single seed only the points have one, from "
        "a paired bootstrap over the test images, and the column interval says so. Calibration error: 15 bins. A run "
        "that diverged counts as a uniform guess. The published rows are ImageNet-1K."
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
        "from scratch, and models with averages over depth. A grown model pays for its parent: cumulative FLOPs. "
        "Neither is published for images: the method is that of Tokenformer (arXiv:2410.23168, section 3.3) and of "
        "DenseFormer (arXiv:2402.02622). Points are of top-1 accuracy, against another run and paired by seed. In "
        "brackets: 95 % Student t interval over seeds; with a single seed only the points have one, from a paired "
        "bootstrap over the test images, and the column interval says so. Calibration error: 15 bins. A run that "
        "diverged counts as a uniform guess."
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
