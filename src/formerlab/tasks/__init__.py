"""Training tasks."""

from typing import Annotated

from pydantic import Field

from formerlab.tasks.classification import Classification
from formerlab.tasks.language import LanguageModeling
from formerlab.tasks.task import TaskSpec
from formerlab.tasks.translation import Translation

Task = Annotated[LanguageModeling | Translation | Classification, Field(discriminator="kind")]

__all__ = ["Classification", "LanguageModeling", "Task", "TaskSpec", "Translation"]
