"""The figures of numerics.md: the table of a record, and two pictures beside this file.

    python -m docs.numerics .conformance/record.jsonl

prints the table and writes error-and-bound.svg and undecidable-blocks.svg. Everything is computed
on the CPU, from seeded inputs; Triton kernels are interpreted.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before a kernel is defined

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot as plt

from docs.pages import begin_pictures, complete, markdown, save
from golden.files import OPERATIONS
from golden.record import Verdict
from golden.recorded import load_states
from kernels import catalog
from suites.cases import ESTIMATE, ONE_PASS, STATS, Case, real, to_golden
from suites.runner import Runner

HERE = Path(__file__).parent
IMPLEMENTATIONS = ("torch", "triton")
CPU = torch.device("cpu")


# --- the table -----------------------------------------------------------------------------------


def table(record: Path) -> str:
    """The largest |error| / bound of each operation and implementation, in Markdown.

    Of the tests whose name says which operation they call, and of our own implementations.
    """
    _, lines = complete(record, "python -m pytest")
    ratios: dict[str, dict[str, float]] = defaultdict(dict)
    for line in lines:
        if (
            isinstance(line, Verdict)
            and line.implementation in catalog.BUILT_IN
            and line.error_ratio is not None
        ):
            called = line.test.rpartition("[")[2].partition("/")[0].rstrip("]").split("-")
            for operation in {*called} & {*OPERATIONS}:
                of = ratios[operation]
                of[line.implementation] = max(of.get(line.implementation, 0), line.error_ratio)
    names = [n for n in catalog.BUILT_IN if any(n in of for of in ratios.values())]
    rows = [
        [f"`{operation}`", *(f"{found[name]:.2f}" if name in found else "" for name in names)]
        for operation in OPERATIONS
        if (found := ratios.get(operation))
    ]
    return markdown(["operation", *names], rows, left=1)


# --- the error against the bound -----------------------------------------------------------------


def errors_and_bounds(case: Case, name: str) -> tuple[list[float], list[float]]:
    """Of every element of the last result of a case: |error| and its bound."""
    actual = Runner(catalog.load(name), CPU).judge(case)[-1].double()
    error = (actual - case.expected()[-1].double()).abs()
    bound = case.bounds()[-1]
    assert bound is not None
    return error.flatten().tolist(), bound.flatten().tolist()


def softmax_case(operation: str, spread: float, seed: int) -> Case:
    """Normal scores of a standard deviation ``spread``, causal, of three blocks by six."""
    scores = torch.from_numpy(np.random.default_rng(seed).normal(0, spread, (1, 2, 24, 48)))
    inputs = {
        "attn_weights_slice": to_golden(scores.float()),
        "reshaped_block_size": 8,
        "segment_size": 16,
        "scale": real(1.0),
        "chunk_start": 24,
        "is_causal": True,
    }
    if operation == ONE_PASS:
        inputs |= {"chunk_end": 48, "real_q_len": 48}
    return Case(operation, inputs)  # type: ignore[arg-type]


def draw_errors(path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharex=True, sharey=True)
    for axis, (operation, title) in zip(
        axes, ((STATS, "l of one chunk"), (ONE_PASS, "block sums")), strict=True
    ):
        for name, marker in zip(IMPLEMENTATIONS, "o+", strict=True):
            errors: list[float] = []
            bounds: list[float] = []
            for seed, spread in enumerate((1.0, 8.0, 64.0, 512.0)):
                more = errors_and_bounds(softmax_case(operation, spread, seed), name)
                errors += more[0]
                bounds += more[1]
            axis.scatter(bounds, errors, s=14, marker=marker, label=name, alpha=0.6, linewidths=1)
        axis.set(xscale="log", yscale="log", xlabel="bound", title=title)
        axis.set(xlim=(1e-12, 1e-1), ylim=(1e-13, 1e-1))
        axis.axline((1e-6, 1e-6), (1, 1), color="black", linewidth=1, label="|error| = bound")
    axes[0].set_ylabel("|error|, where it is not 0")
    axes[0].legend()
    save(figure, path)


# --- a mask with its undecidable blocks ----------------------------------------------------------


def recorded_case(dtype: torch.dtype) -> Case:
    states = load_states()
    return Case(
        ESTIMATE,
        {
            "query_states": to_golden(torch.from_numpy(states.query).to(dtype)),
            "key_states": to_golden(torch.from_numpy(states.key).to(dtype)),
            "block_size": 16,
            "stride": 4,
            "threshold": real(0.9),
        },
    )


def draw_mask(path: Path) -> None:
    case = recorded_case(torch.bfloat16)
    (_, mask), (_, undecidable) = case.expected(), case.bounds()
    assert undecidable is not None
    labels = load_states().labels
    heads = len(labels)
    figure, axes = plt.subplots(1, heads, figsize=(4.2 * heads, 4.4))
    for head, axis in enumerate(np.atleast_1d(axes)):
        axis.imshow(mask[0, head], cmap="Blues", vmin=-0.2, vmax=1.6)
        rows, columns = undecidable[0, head].nonzero(as_tuple=True)
        axis.scatter(columns, rows, marker="x", color="crimson", label="undecidable")
        layer, number = labels[head]
        axis.set(title=f"layer {layer}, head {number}", xlabel="key block", ylabel="query block")
    figure.suptitle("selected blocks (dark), and where rounding may decide (x)")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path, help="the record of a run of the suite")
    arguments = parser.parse_args()
    try:
        print(table(arguments.record))
    except ValueError as error:
        parser.error(str(error))
    begin_pictures("numerics")
    draw_errors(HERE / "error-and-bound.svg")
    draw_mask(HERE / "undecidable-blocks.svg")


if __name__ == "__main__":
    main()
