"""Tasks on real data that need no file of their own, by name."""

from __future__ import annotations

from doubletime.training.task import Task
from doubletime.training.tasks import images, language

BUILTIN: dict[str, type[Task]] = {
    task.name: task
    for task in (
        images.Digits,
        images.FashionMnist,
        images.FashionMnistMlp,
        language.TextTransformer,
        language.TextLstm,
        language.TextGru,
        language.PydocTransformer,
        language.PydocLstm,
        language.PydocGru,
    )
}
