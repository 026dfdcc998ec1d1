"""doubletime: synchronous distributed training for stock PyTorch over MPI, NCCL or Gloo.

The names below are the public surface; they load what they need when first used (PEP 562), so
that `import doubletime` costs nothing.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "DoubletimeError",
    "Lamb",
    "Lars",
    "SyncBatchNorm",
    "Task",
    "__version__",
    "all_gather",
    "all_reduce",
    "average",
    "broadcast",
    "clip",
    "comm_hook",
    "init",
    "loader",
    "parallelize",
    "reduce",
    "reduce_scatter",
    "resume",
    "save",
    "train",
]

if TYPE_CHECKING:
    from doubletime.api import init as init
    from doubletime.api import train as train
    from doubletime.collectives.functions import all_gather as all_gather
    from doubletime.collectives.functions import all_reduce as all_reduce
    from doubletime.collectives.functions import broadcast as broadcast
    from doubletime.collectives.functions import reduce as reduce
    from doubletime.collectives.functions import reduce_scatter as reduce_scatter
    from doubletime.collectives.hook import comm_hook as comm_hook
    from doubletime.errors import DoubletimeError as DoubletimeError
    from doubletime.training.checkpoint.own_loop import resume as resume
    from doubletime.training.checkpoint.own_loop import save as save
    from doubletime.training.clipping import clip as clip
    from doubletime.training.data import loader as loader
    from doubletime.training.layerwise import Lamb as Lamb
    from doubletime.training.layerwise import Lars as Lars
    from doubletime.training.parallelize import average as average
    from doubletime.training.parallelize import parallelize as parallelize
    from doubletime.training.sync_batchnorm import SyncBatchNorm as SyncBatchNorm
    from doubletime.training.task import Task as Task
else:
    _HOME = {
        "DoubletimeError": "errors",
        "Lamb": "training.layerwise",
        "Lars": "training.layerwise",
        "SyncBatchNorm": "training.sync_batchnorm",
        "Task": "training.task",
        "all_gather": "collectives.functions",
        "all_reduce": "collectives.functions",
        "average": "training.parallelize",
        "broadcast": "collectives.functions",
        "clip": "training.clipping",
        "comm_hook": "collectives.hook",
        "init": "api",
        "loader": "training.data",
        "parallelize": "training.parallelize",
        "reduce": "collectives.functions",
        "reduce_scatter": "collectives.functions",
        "resume": "training.checkpoint.own_loop",
        "save": "training.checkpoint.own_loop",
        "train": "api",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)
