"""python -m sandbox serve | run FILE | doctor | simulate | ray."""

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from contracts.execution import ExecutionCall, Limits
from sandbox import simulate
from sandbox.box import Box, BoxError
from sandbox.doctor import doctor
from sandbox.launcher import NodeRefusesError
from sandbox.node import choose_launcher, serve
from sandbox.settings import NodeSettings, read_settings
from sandbox.tiers import choose_tier


def main() -> int:
    """Parse, run, and turn a refusal into one sentence on stderr and exit code 2."""
    arguments = _parser().parse_args()
    if arguments.command == "simulate":
        return show_simulation(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if arguments.command == "ray":
        return ray_nodes(arguments.address, arguments.boxes)
    try:
        settings = read_settings(
            os.environ,
            host=getattr(arguments, "host", "127.0.0.1"),
            port=getattr(arguments, "port", 8088),
            boxes=getattr(arguments, "boxes", 0),
            state_dir=arguments.state_dir,
        )
        match arguments.command:
            case "serve":
                asyncio.run(serve(settings))
                return 0
            case "run":
                return asyncio.run(run_file(settings, arguments.file, arguments.wall_s))
            case _:
                return asyncio.run(doctor(settings))
    except NodeRefusesError as error:
        sys.stderr.write(f"sandbox: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sandbox", description="Runs untrusted Python in gVisor.")
    commands = parser.add_subparsers(dest="command", required=True)
    node = commands.add_parser("serve", help="serve POST /v1/run until Ctrl-C")
    node.add_argument("--host", default="127.0.0.1")
    node.add_argument("--port", type=int, default=8088)
    node.add_argument("--boxes", type=int, default=0, help="warm boxes; default: two a core")
    once = commands.add_parser("run", help="run one file in a box of its own")
    once.add_argument("file", type=Path)
    once.add_argument("--wall-s", type=float, default=5.0)
    commands.add_parser("doctor", help="say what works here, attack included")
    for command in commands.choices.values():
        command.add_argument("--state-dir", type=Path, default=None, help="default: SANDBOX_STATE_DIR or var/sandbox")
    cluster = commands.add_parser("ray", help="a node on every Ray node that has the resource sandbox; prints URLs")
    cluster.add_argument("--address", default="auto", help="of the Ray cluster")
    cluster.add_argument("--boxes", type=int, default=0, help="warm boxes of each node; default: by its cores")
    scale = commands.add_parser("simulate", help="how many cores for how many calls, from measured costs")
    scale.add_argument("--costs", type=Path, metavar="FILE", help="of benchmarks.sandbox --json; default: as committed")
    scale.add_argument("--calls", type=int, default=simulate.STEP_CALLS, help="calls of one step")
    scale.add_argument("--spread-s", type=float, nargs="+", default=list(simulate.SPREADS_S), help="0: all at once")
    scale.add_argument("--cores", type=int, nargs="+", default=list(simulate.CORES))
    scale.add_argument("--cores-per-node", type=int, default=32)
    scale.add_argument("--markdown", type=Path, metavar="FILE", help="put the tables between its marks (docs/scale.md)")
    return parser


def show_simulation(arguments: argparse.Namespace) -> int:
    """Print the tables, or put them into a document."""
    tables = simulate.report(
        simulate.read_costs(arguments.costs),
        calls=arguments.calls,
        cores_per_node=arguments.cores_per_node,
        cores=arguments.cores,
        spreads_s=arguments.spread_s,
    )
    if arguments.markdown:
        simulate.write_between_marks(arguments.markdown, "simulated", tables)
    else:
        sys.stdout.write(f"{tables}\n")
    return 0


async def run_file(settings: NodeSettings, path: Path, wall_s: float) -> int:
    """Run a file in a fresh box; its output and exit code become ours."""
    call = ExecutionCall(id=path.name, code=path.read_text(errors="replace"), limits=Limits(wall_s=wall_s))
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    launcher = await choose_launcher(settings)
    try:
        box = await Box.start(launcher, choose_tier(call.code, settings.tiers))
        try:
            reply = await box.run(call)
        finally:
            await box.close()
    except BoxError as error:
        raise NodeRefusesError(str(error)) from error
    finally:
        launcher.close()
    sys.stdout.write(reply["stdout"])
    sys.stderr.write(reply["stderr"])
    if reply["status"] not in ("ok", "error"):
        sys.stderr.write(f"[{reply['status']}]\n")
    return int(reply["exit_code"]) if reply["exit_code"] is not None else 1


def ray_nodes(address: str, boxes: int) -> int:
    """Start the agents that are missing and print where each node listens."""
    from sandbox.ray_node import start_on_cluster  # ray takes a second, and a node does not need it

    urls, failures = start_on_cluster(address, boxes)
    if not urls and not failures:
        failures = ["""no Ray node has the resource: ray start --resources '{"sandbox": 1}'"""]
    sys.stdout.write("".join(f"{url}\n" for url in urls))
    sys.stderr.write("".join(f"sandbox: {failure}\n" for failure in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
