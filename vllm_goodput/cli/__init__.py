# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The `vllm-goodput` command: one module per subcommand, imported only when it runs.

A subcommand module has `add_arguments(parser)` and `run(args) -> int` (the exit status). A GoodputError ends the
command with its one-line message; Ctrl-C ends it with status 130.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from vllm_goodput import __version__
from vllm_goodput.cli.help import HelpFormatter
from vllm_goodput.errors import GoodputError

COMMANDS = {
    "serve": "vllm serve with the plugin on",
    "route": "OpenAI-compatible gateway over a pool of vLLM instances",
    "up": "start a whole deployment on this machine: instances and gateway",
    "bench": "replay a trace with SLOs against any OpenAI endpoint and report goodput",
    "simulate": "compare routing policies on a simulated pool of device profiles",
    "train": "train the model of output lengths on finished requests and report how good it is",
    "predict": "predict the output length of a request, or of many",
    "doctor": "check that this installation can run",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _guarded(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["serve"]:  # its arguments are vLLM's, unknown to the parser below
        return int(import_module(f"{__name__}.serve").run(arguments[1:]))
    parser = _parser(arguments[0] if arguments else "")
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 2
    return int(import_module(f"{__name__}.{args.command}").run(args))


def _parser(chosen: str) -> argparse.ArgumentParser:
    """The whole parser; only the chosen subcommand's module is imported."""
    parser = argparse.ArgumentParser(
        prog="vllm-goodput",
        description="More requests per second that meet their deadlines, on vLLM.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=HelpFormatter,
        )
        if name == chosen:
            import_module(f"{__name__}.{name}").add_arguments(sub)
    return parser


def _guarded(run: Callable[[], int]) -> int:
    try:
        return run()
    except GoodputError as error:
        print(f"vllm-goodput: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("vllm-goodput: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        sys.stderr.close()
        return 141
