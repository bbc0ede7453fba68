"""The verbs of `run`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import alone, bars, compare, places, roster, workloads
from .contenders import ContenderFailure
from .contenders.nightshift import Nightshift

_SIZES = (100, 200, 400, 800)


def main(arguments: list[str] | None = None) -> int:
    """Runs a verb, and returns its exit code: 0 done, 1 a bar is missed, 2 the figures cannot be compared."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.verb(options))
    except ContenderFailure as failure:
        print(f"run: {failure}", file=sys.stderr)
        return compare.NOT_COMPARABLE


def _compare(options: argparse.Namespace) -> int:
    here = places.Places(options.cache.resolve(), options.model.resolve())
    missing = [path for path in (*here.missing(), options.nightshift, options.peak) if not path.exists()]
    if missing:
        print("run: `make bench` makes what is missing: " + ", ".join(map(str, missing)), file=sys.stderr)
        return compare.NOT_COMPARABLE
    roster.fresh(here.runs)
    ours = roster.nightshifts(options.nightshift, here.model, options.precisions)
    plan = compare.Plan(
        workloads=options.workloads,
        repetitions=options.repetitions,
        seed=options.seed,
        lines=options.lines,
        tries=options.tries,
        quiet_timeout_s=options.quiet_timeout,
    )
    return compare.compare(
        plan,
        [*ours, *roster.peers(options.peers, here, options.vllm_kv_gib)],
        headline=ours[0].name,
        places=here,
        peak=compare.measure_peak(options.peak, options.quiet_timeout),
        output=options.output,
    )


def _scaling(options: argparse.Namespace) -> int:
    engine, runs = _alone(options)
    holds = alone.scaling(engine, options.sizes, options.repetitions, options.seed, options.quiet_timeout, runs)
    return compare.DONE if holds else compare.BAR_MISSED


def _start(options: argparse.Namespace) -> int:
    engine, runs = _alone(options)
    holds = alone.start(engine, options.repetitions, options.quiet_timeout, runs)
    return compare.DONE if holds else compare.BAR_MISSED


def _generate(options: argparse.Namespace) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.workloads:
        made = workloads.generate(name, options.seed, options.lines)
        made.write(options.folder / f"{name}.jsonl", options.model_name)
    return compare.DONE


def _alone(options: argparse.Namespace) -> tuple[Nightshift, Path]:
    here = places.Places(options.cache.resolve(), options.model.resolve())
    engine = roster.nightshifts(options.nightshift, here.model, options.precisions)[0]
    return engine, roster.fresh(here.runs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run", description=_DESCRIPTION, formatter_class=_Formatter)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    verb = verbs.add_parser("compare", help="Nightshift beside its peers", formatter_class=_Formatter)
    verb.set_defaults(verb=_compare)
    _add_common(verb)
    _add_workloads(verb)
    verb.add_argument(
        "--peers",
        nargs="*",
        choices=roster.PEERS_ALL,
        default=roster.usual_peers(),
        metavar="PEER",
        help="any of the above; default: those that are fast on this processor",
    )
    verb.add_argument("--output", type=Path, help="write every run to this file, as JSON")
    verb.add_argument("--peak", type=Path, default=places.PEAK, help="the program that measures the register peak")
    verb.add_argument("--tries", type=int, default=2, help="runs in all, where other processes disturb one")
    verb.add_argument("--vllm-kv-gib", type=int, default=2, help="KV cache of each vLLM")

    verb = verbs.add_parser("scaling", help="how the time grows with the lines", formatter_class=_Formatter)
    verb.set_defaults(verb=_scaling)
    _add_common(verb)
    verb.add_argument("--sizes", type=int, nargs="+", default=list(_SIZES), help="lines, each twice those before")

    verb = verbs.add_parser("start", help="how long a start takes with warm caches", formatter_class=_Formatter)
    verb.set_defaults(verb=_start)
    _add_common(verb)

    verb = verbs.add_parser("generate", help="write the workloads, and run nothing", formatter_class=_Formatter)
    verb.set_defaults(verb=_generate)
    verb.add_argument("folder", type=Path)
    verb.add_argument("--model-name", default="smollm2-135m-instruct", help="the model that the lines name")
    verb.add_argument("--seed", type=int, default=1)
    _add_workloads(verb)
    return parser


def _add_common(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--nightshift", type=Path, default=places.NIGHTSHIFT, help="the program")
    verb.add_argument("--model", type=Path, default=places.MODEL, help="a GGUF file")
    verb.add_argument("--cache", type=Path, default=places.CACHE, help="what `peers/install` has filled")
    verb.add_argument(
        "--precisions",
        nargs="+",
        choices=sorted(bars.LIMIT_SHARE_MIN),
        help="of Nightshift; the bars are about the first (default: those that it has, int8 first)",
    )
    verb.add_argument("--seed", type=int, default=1, help="of the first repetition")
    verb.add_argument("--repetitions", type=int, default=3)
    verb.add_argument(
        "--quiet-timeout", type=float, default=120.0, metavar="S", help="longest wait for a quiet machine"
    )


def _add_workloads(verb: argparse.ArgumentParser) -> None:
    names = workloads.NAMES
    verb.add_argument("--workloads", nargs="+", choices=names, default=list(names), metavar="NAME")
    verb.add_argument("--lines", type=int, help="in place of each workload's own number")


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the description's lines, and shows defaults that there are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


_DESCRIPTION = f"""Times Nightshift's engine beside what a user would run instead.

workloads: {", ".join(workloads.NAMES)}
peers:     {"; ".join(roster.PEERS_ALL)}"""
