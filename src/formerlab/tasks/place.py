"""Where a run of a chain begins in its training data: behind all that its ancestors read of them."""

from pydantic import NonNegativeInt

from formerlab.spec import Spec


class Place(Spec):
    """A place in a training split, which a chain of runs moves on; the default is its beginning."""

    chain_steps: NonNegativeInt = 0
    """Steps of the chain so far, on whatever data; they number what is drawn beside the data (dropout)."""
    steps: NonNegativeInt = 0
    """Those on these data; they number what is drawn from the data (windows, crops, blends)."""
    position: NonNegativeInt = 0
    """Place in the endless row of epochs, where there are epochs: images, or batches of sentences; else the steps."""
    step_tokens: NonNegativeInt = 0
    """Tokens of a step of the run that came here; batches of sentences change with them."""


BEGINNING = Place()
