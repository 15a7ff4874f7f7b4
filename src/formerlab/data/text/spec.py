"""The spec of a corpus: where the text comes from, how it is divided, cut and tokenised."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from formerlab.data.dataset import DataSpec
from formerlab.data.text.embedded import Embedded
from formerlab.data.text.files import Files
from formerlab.data.text.hub import Hub
from formerlab.data.text.tokenizer import BytePairs, Tokenizer
from formerlab.spec import AnyCount, Bytes

Source = Annotated[Embedded | Files | Hub, Field(discriminator="kind")]

Share = Annotated[float, Field(gt=0, lt=0.5)]


class TextData(DataSpec):
    """A corpus as token streams for training, validation and test."""

    stage: ClassVar[str] = "formerlab.data.text.prepare"

    kind: Literal["text"] = "text"
    source: Source = Embedded()
    """Where the text comes from."""
    tokenizer: Tokenizer = BytePairs()
    """What turns it into tokens."""
    valid_share: Share = 0.05
    """Share of the documents that become validation text, where the source does not say which."""
    test_share: Share = 0.05
    """Share of the documents that become test text, where the source does not say which."""
    max_bytes: Bytes | None = None
    """Training text ends with the document that reaches this size; None keeps all."""
    max_held_out_bytes: Bytes | None = 8_000_000
    """Validation and test text each end with the document that reaches this size; None keeps all."""
    questions: AnyCount = 0
    """At most so many multiple-choice questions for each embedded task, from the test documents; 0 makes none."""

    @model_validator(mode="after")
    def _questions_need_structure(self) -> "TextData":
        if self.questions and not (isinstance(self.source, Embedded) and self.source.content == "docstrings"):
            raise ValueError("questions are made from the docstrings of source 'embedded' only; set questions: 0")
        return self

    def search(self) -> None:
        """Raise UserError for named files that are not there, and for splits that their names alone leave empty."""
        self.source.check_division(self.shares)

    @property
    def vocabulary(self) -> int:
        """Number of tokens a model needs, known before anything is read."""
        if self.tokenizer.vocabulary is None:
            raise ValueError("the plan has not filled in tokenizer.vocabulary yet")
        return self.tokenizer.vocabulary

    def known(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the vocabulary, and the longest sequence that the task asks for."""
        context = {"context": task["context"]} if "context" in task else {}
        return {"model": {"vocabulary": self.vocabulary} | context}
