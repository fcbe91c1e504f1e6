"""What the two commands of this folder take alike."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter

from vectord.cli.parsing import RaisingParser
from vectord.errors import ConfigError


def cluster_parser(prog: str, usage: str, description: str, epilog: str, *, of: str) -> RaisingParser:
    """With --address, --cpus and --gpus. of: whose processors and GPUs these are."""
    own = RaisingParser(
        prog=prog,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = own.add_argument
    add("--address", metavar="HOST:PORT", help="of the cluster, or auto (default: one made of this machine)")
    add("--cpus", metavar="N", type=int, default=1, help=f"processors of {of}, and its threads (default: 1)")
    add("--gpus", metavar="N", type=float, default=0.0, help=f"GPUs of {of} (default: 0)")
    return own


def check_gpus(gpus: float) -> None:
    """Raises ConfigError."""
    if not gpus >= 0:  # NaN is not, either
        raise ConfigError(f"--gpus: expected 0 or more, got {gpus:g}")
