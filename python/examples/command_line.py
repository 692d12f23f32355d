"""What the command lines of the examples share: errors of one line, --device, a quiet end at Ctrl-C."""

import argparse
import signal
import sys
import warnings

import torch

import attngrad

warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")  # torch.func.jvp uses it itself


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with exit status 2."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def whole_number(least):
    """A type of arguments: whole numbers from `least` on."""

    def parse(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least {least}")
        return int(text)

    return parse


def parse_with_device(parser, arguments=None):
    """The options, after --device was added to them; refuses a GPU that is not there."""
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no NVIDIA GPU here")
    if options.device == "cuda" and "cuda" not in attngrad.info()["backends"].split():
        parser.error("--device cuda: this build of attngrad has no CUDA backend; docs/gpu.md says how to build it")
    return options


def run(main):
    """Runs a program to its exit status."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)  # as shells say it
