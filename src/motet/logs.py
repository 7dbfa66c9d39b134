"""How Motet logs: structlog, to standard error, for people or as JSON lines."""

import logging
import sys
from typing import Any

import structlog


def configure(level: str = "INFO", *, as_json: bool = False) -> None:
    """Set up structlog for the whole process; for applications, never called by the library.

    Args:
        level: DEBUG, INFO, WARNING, ERROR or CRITICAL.
        as_json: one JSON object a line.
    """
    render: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
