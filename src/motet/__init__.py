"""Motet: a language model on MLX for many callers at once.

    async with motet.open_engine("path or hub name") as engine:
        async with engine.generate("Once upon a time") as stream:
            async for event in stream:
                ...

Leaving the inner block, however, cancels the row. docs/embedding.md has more.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from motet.actors.engine import Engine, EngineInfo
from motet.actors.intake import InvalidRequest
from motet.actors.request import Request
from motet.actors.resumable import StreamGone, TakenUp
from motet.actors.stream import EngineDied, Event, NotTaken, Stream
from motet.actors.system import Settings, open_system
from motet.channels.caller import Failed, Finished, Likely, Logprob, Reasoning, Text, ToolCall, Usage
from motet.engine import model as _model
from motet.engine.constraints import grammar
from motet.portal import EngineThread, open_engine_sync

__version__ = "0.1.0"

__all__ = [
    "Engine",
    "EngineDied",
    "EngineInfo",
    "EngineThread",
    "Event",
    "Failed",
    "Finished",
    "InvalidRequest",
    "Likely",
    "Logprob",
    "NotTaken",
    "Reasoning",
    "Request",
    "Settings",
    "Stream",
    "StreamGone",
    "TakenUp",
    "Text",
    "ToolCall",
    "Usage",
    "grammar",
    "open_engine",
    "open_engine_sync",
]


@contextlib.asynccontextmanager
async def open_engine(model: str | os.PathLike[str], **settings: Any) -> AsyncIterator[Engine]:
    """Load a model and run an engine for as long as the block lasts.

    Args:
        model: a directory in mlx-lm's format, or a hub name.
        settings: see Settings.

    Raises:
        EngineDied: the engine ended by itself, and the block did not raise.
        Exception: what loading raised, or the block.
    """
    load = partial(_model.load, os.fspath(model))
    async with open_system(load, Settings(**settings)) as engine:
        yield engine
