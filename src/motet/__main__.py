"""The command line: ``motet serve``, ``motet cache`` and ``motet default-model``."""

import argparse
import ctypes
import os
import pathlib
import re
import sys
from collections.abc import Callable
from functools import partial

import structlog
import trio

from motet import __version__, logs
from motet.actors import inspection
from motet.actors.system import Settings

log = structlog.get_logger()

_DEFAULT_MODEL_ID = "smollm2-135m-instruct"


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit code."""
    options = _parser().parse_args(arguments)
    run: int = options.run(options)
    return run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="motet", description="A language model on MLX for many callers at once."
    )
    parser.add_argument("--version", action="version", version=f"motet {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_serve_options(serve)
    serve.set_defaults(run=_serve)
    default = commands.add_parser(
        "default-model", help="make the default model's directory if need be, and print it"
    )
    default.set_defaults(run=_default_model)
    _add_cache_commands(commands.add_parser("cache", help="look after a prompt cache's directory"))
    return parser


def _add_cache_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, what in (
        ("ls", _cache_ls, "list its entries, the latest used first"),
        ("verify", _cache_verify, "read every byte; exit 1 if an entry is damaged"),
        ("rm", _cache_rm, "remove entries"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("directory", type=pathlib.Path, help="what --prompt-cache-dir was")
        command.set_defaults(run=run)
        if name == "rm":
            which = command.add_mutually_exclusive_group(required=True)
            which.add_argument("names", nargs="*", default=[], metavar="NAME", help="an entry's file name")
            which.add_argument("--all", action="store_true", help="all entries")


def _add_serve_options(parser: argparse.ArgumentParser) -> None:
    default = Settings()
    add = parser.add_argument
    add("--model", help="an mlx-lm model directory or hub name; the embedded default model if absent")
    add("--host", default="127.0.0.1", help="address to serve on")
    add("--port", type=int, default=8080, help="port to serve on; 0 for any free one")
    add(
        "--batch",
        "--decode-concurrency",
        type=_positive,
        default=default.batch,
        metavar="N",
        help="rows decoded together at most; with 1 a request's tokens never depend on the load",
    )
    add(
        "--prompt-concurrency",
        type=_positive,
        default=default.prompt_concurrency,
        metavar="N",
        help="prompts read by turns at most",
    )
    add(
        "--prefill-step-size",
        type=_positive,
        default=default.prefill_step_size,
        metavar="N",
        help="prompt tokens read at once at most",
    )
    add(
        "--max-decode-stall",
        type=_positive,
        default=round(1000 * default.max_decode_stall),
        metavar="MS",
        help="milliseconds that reading a prompt may hold up running streams at a time",
    )
    add(
        "--max-tokens",
        type=_positive,
        default=default.max_tokens,
        metavar="N",
        help="tokens to generate when a request does not say",
    )
    add(
        "--prompt-cache-bytes",
        type=_budget,
        default="auto",
        metavar="BYTES|auto",
        help="ceiling of the prompt cache in memory, as 500MB or 2GiB; 0 for none; auto for half the budget",
    )
    add(
        "--prompt-cache-dir",
        metavar="DIR",
        help="keep prefixes in this directory beyond the process; without it they are kept in memory only",
    )
    add(
        "--prompt-cache-disk-bytes",
        type=_bytes,
        default=default.prompt_cache_disk_bytes,
        metavar="BYTES",
        help="ceiling of that directory",
    )
    add(
        "--kv-budget",
        type=_budget,
        default="auto",
        metavar="BYTES|auto",
        help="bytes for all rows and the prompt cache together; auto for what the device has left",
    )
    add(
        "--queue-limit",
        type=_positive,
        default=default.queue_limit,
        metavar="N",
        help="requests that wait at most; past it they are told 429",
    )
    add(
        "--queue-timeout",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds that a request waits at most before it is told 503; 0 for as long as it takes",
    )
    add(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that running streams have to end after SIGTERM or SIGINT",
    )
    add(
        "--resume-window",
        type=float,
        default=default.resume_window,
        metavar="S",
        help="seconds that a resumable stream runs on when its client is gone; 0 for no such streams",
    )
    add(
        "--resume-rows",
        type=_positive,
        default=default.resume_rows,
        metavar="N",
        help="rows at most that run on without a client",
    )
    add(
        "--resume-bytes",
        type=_bytes,
        default=default.resume_bytes,
        metavar="BYTES",
        help="bytes at most of events that are kept for clients that are gone",
    )
    add(
        "--device-timeout",
        type=float,
        default=default.device_timeout,
        metavar="S",
        help="seconds that one command on the device may take before the server gives up",
    )
    add(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY[,KEY]",
        help="ask for one of these keys; can be repeated, or given in MOTET_API_KEY",
    )
    add(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web pages of this origin may call; can be repeated; * for all",
    )
    add(
        "--responses-bytes",
        type=_bytes,
        default="64MiB",
        metavar="BYTES",
        help="ceiling of the responses that /v1/responses holds for previous_response_id; 0 for none",
    )
    add(
        "--strip-billing-nonce",
        action="store_true",
        help="take the x-anthropic-billing-header line off system prompts: it changes with every request",
    )
    add(
        "--image-notes",
        action="store_true",
        help="put a note in the place of images in prompts rather than refuse them: models read text only",
    )
    add(
        "--log-level",
        default="INFO",
        type=str.upper,
        choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        help="least severe events to log",
    )
    add("--log-json", action="store_true", help="log JSON lines")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def _bytes(text: str) -> int:
    """A count of bytes: 1000000, 500MB, 2GiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"not a size: {text}")
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** _UNITS[unit])


def _budget(text: str) -> int | None:
    """A count of bytes, or None for 'auto'."""
    return None if text.strip().lower() == "auto" else _bytes(text)


def _serve(options: argparse.Namespace) -> int:
    # Imported late, so that --help does not wait for MLX.
    from motet import EngineDied
    from motet.engine import default_model, model
    from motet.http.access import split_keys
    from motet.http.server import CannotListen, HTTPSettings, run
    from motet.tuning import tune_process

    logs.configure(options.log_level, as_json=options.log_json)
    tune_process()
    _say_if_openblas_is_missing()
    settings = Settings(
        batch=options.batch,
        prompt_concurrency=options.prompt_concurrency,
        prefill_step_size=options.prefill_step_size,
        max_decode_stall=options.max_decode_stall / 1000,
        prompt_cache_bytes=options.prompt_cache_bytes,
        prompt_cache_dir=options.prompt_cache_dir,
        prompt_cache_disk_bytes=options.prompt_cache_disk_bytes,
        kv_budget=options.kv_budget,
        queue_limit=options.queue_limit,
        queue_timeout=options.queue_timeout or None,
        max_tokens=options.max_tokens,
        resume_window=options.resume_window,
        resume_rows=options.resume_rows,
        resume_bytes=options.resume_bytes,
        device_timeout=options.device_timeout,
    )
    http = HTTPSettings(
        options.host,
        options.port,
        options.drain_timeout,
        split_keys([*options.api_key, os.environ.get("MOTET_API_KEY", "")]),
        tuple(options.cors_origin),
        options.responses_bytes,
        options.strip_billing_nonce,
        options.image_notes,
    )
    try:
        name = options.model or os.fspath(default_model.directory())
        model_id = options.model or _DEFAULT_MODEL_ID
        trio.run(run, partial(model.load, name), model_id, settings, http)
    except (CannotListen, default_model.DefaultModelMissing) as error:
        log.error(str(error))
        return 1
    except EngineDied as error:
        log.error("the engine has failed", cause=str(error.__cause__))
        return 1
    except Exception as error:
        log.error("cannot serve", error=f"{type(error).__name__}: {error}", exc_info=True)
        return 1
    return 0


def _say_if_openblas_is_missing() -> None:
    """MLX's Linux CPU wheel carries the reference BLAS, which is some 40 times slower."""
    import mlx.core as mx

    if sys.platform != "linux" or mx.default_device() != mx.Device(mx.cpu):
        return
    if not hasattr(ctypes.CDLL(None), "openblas_get_config"):
        log.warning(
            "matrix products will be slow: install Debian's libopenblas0-pthread and start with "
            "LD_PRELOAD=libopenblas.so.0"
        )


def _cache_ls(options: argparse.Namespace) -> int:
    return _told(lambda: inspection.entries(options.directory))


def _cache_verify(options: argparse.Namespace) -> int:
    return _told(lambda: inspection.verify(options.directory))


def _told(look: Callable[[], list[inspection.Inspected]]) -> int:
    try:
        found = look()
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    for one in found:
        print(one.line())
    return int(any(one.fault for one in found))


def _cache_rm(options: argparse.Namespace) -> int:
    try:
        removed = inspection.remove(options.directory, None if options.all else options.names)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    for name in removed:
        print(f"removed {name}")
    return int(not options.all and set(removed) != set(options.names))


def _default_model(_: argparse.Namespace) -> int:
    from motet.engine import default_model

    try:
        print(default_model.directory())
    except default_model.DefaultModelMissing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
