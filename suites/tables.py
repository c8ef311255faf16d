"""``python -m suites.tables``: the tables of XAttention's source, made again, as Markdown.

One pass over all keys against the three stages over chunks of them, by the density of the masks and
by how far these differ; then what scores and statistics take in memory. Queries and keys are a
sink, a band and noise, so the densities are not those of the source, which had a model's. Stride,
threshold and the chunk of keys are the source's; it does not say how large its blocks were.
"""

import argparse
import itertools
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Final, NoReturn, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels import catalog
from kernels.api import XAttentionKernels
from oracles import storage
from oracles.selection import Result, density, mask_difference
from suites.strategies.structured import Local, Noise, Sink, states

OPERATIONS: Final = (
    "flat_group_gemm_fuse_reshape",
    "softmax_fuse_block_sum",
    "softmax_compute_partial_stats",
    "merge_softmax_stats",
    "softmax_normalize_and_block_sum",
    "find_blocks_chunked",
)
K: Final = 1024
LENGTHS: Final = (3688, 7888, 15685, 32485)  # the source's, up to what a CPU does in seconds
STRIDE, THRESHOLD, BLOCK, KV_CHUNK = 4, 0.9, 128, 16 * K  # all but the second in tokens
POSITIONS: Final = BLOCK // STRIDE  # in a block
CONFIGURATIONS: Final = ((16, 16), (8, 16), (16, 8), (8, 8), (4, 16))  # K tokens of Q, of KV

SMALLER: Final = "give a smaller one, or fewer --heads"

Pair = tuple[Tensor, Tensor]


def mixture(length: int, heads: int, head_dim: int, seed: int, device: torch.device) -> Pair:
    """Queries and keys fp32 ``[1, heads, length, head_dim]`` of a sink, a band and noise."""
    queries, keys = states(
        Sink(10.0),
        Local(2.0, width=BLOCK),
        Noise(3.0, dims=max(head_dim // 2, 1), seed=seed),
        length=length,
        head_dim=head_dim,
        heads=heads,
    )
    return queries.to(device), keys.to(device)


# --- the two ways to a mask ----------------------------------------------------------------------


def one_pass(kernels: XAttentionKernels, pair: Pair) -> Tensor:
    """The selected blocks, bool ``[batch, heads, blocks, blocks]``, from all scores at once."""
    queries, keys, real_q_len, scale = _padded(pair)
    end = queries.shape[2] // STRIDE
    scores = kernels.flat_group_gemm_fuse_reshape(queries, keys, STRIDE, 0, end, True)
    sums = kernels.softmax_fuse_block_sum(
        scores, POSITIONS, POSITIONS, 0, end, real_q_len, scale, True
    )
    return kernels.find_blocks_chunked(sums, 0, THRESHOLD)


def in_chunks(kernels: XAttentionKernels, pair: Pair, q_chunk: int, kv_chunk: int) -> Tensor:
    """The same, chunk by chunk of queries and, within, of keys; chunks of whole blocks, in tokens.

    The last chunk is as long as what is left: nothing is padded to whole chunks.
    """
    queries, keys, real_q_len, scale = _padded(pair)
    masks = []
    for q_start in range(0, queries.shape[2], q_chunk):
        rows = queries[:, :, q_start : q_start + q_chunk]
        start, end = q_start // STRIDE, (q_start + rows.shape[2]) // STRIDE
        scores = {
            k_start // STRIDE: kernels.flat_group_gemm_fuse_reshape(
                rows, keys[:, :, k_start : k_start + kv_chunk], STRIDE, start, end, False
            )
            for k_start in range(0, keys.shape[2], kv_chunk)
        }
        parts = [
            kernels.softmax_compute_partial_stats(
                x, POSITIONS, POSITIONS, scale, start, kv_offset, True
            )
            for kv_offset, x in scores.items()
        ]
        merged = kernels.merge_softmax_stats([m for m, _ in parts], [total for _, total in parts])
        sums = [
            kernels.softmax_normalize_and_block_sum(
                x, *merged, POSITIONS, POSITIONS, start, real_q_len, scale, kv_offset, True
            )
            for kv_offset, x in scores.items()
        ]
        masks.append(kernels.find_blocks_chunked(torch.cat(sums, -1), q_start // BLOCK, THRESHOLD))
    return torch.cat(masks, 2)


def _padded(pair: Pair) -> tuple[Tensor, Tensor, int, float]:
    """Queries and keys of whole blocks, how many positions are real, and the scale.

    Attention is causal and lengths are equal: a padded key is in the future of every real query.
    """
    length, head_dim = pair[0].shape[2:]
    queries, keys = (pad(x, (0, 0, 0, -length % BLOCK)) for x in pair)
    return queries, keys, math.ceil(length / STRIDE), 1 / (math.sqrt(head_dim) * STRIDE)


# --- the tables ----------------------------------------------------------------------------------


def equivalence_row(kernels: XAttentionKernels, pair: Pair) -> list[str]:
    """Of the source's 验证测试: one pass against chunks of KV_CHUNK tokens."""
    length = pair[0].shape[2]
    api, kv = (
        _result(mask)
        for mask in (one_pass(kernels, pair), in_chunks(kernels, pair, KV_CHUNK, KV_CHUNK))
    )
    return [
        str(length),
        str(STRIDE),
        f"{THRESHOLD:.2f}",
        str(storage.num_kv_chunks(length, KV_CHUNK)),
        f"{density(api):.6f}",
        f"{density(kv):.6f}",
        f"{abs(density(api) - density(kv)):.6f}",
        _percent(mask_difference(api, kv)),
    ]


def configuration_rows(kernels: XAttentionKernels, pair: Pair) -> Iterator[list[str]]:
    """Of the source's 测试验证结果: the chunks that it tried, each against one pass."""
    length, expected = pair[0].shape[2], _result(one_pass(kernels, pair))
    for q, kv in CONFIGURATIONS:
        mask = _result(in_chunks(kernels, pair, q * K, kv * K))
        yield [
            f"Q={q}K, KV={kv}K",
            str(length),
            str(math.ceil(length / (q * K))),
            str(storage.num_kv_chunks(length, kv * K)),
            f"{density(mask):.4f}",
            _percent(1 - mask_difference(expected, mask)),
        ]


def _result(mask: Tensor) -> Result:
    return Result("bool", tuple(mask.shape), tuple(mask.flatten().tolist()))


def _percent(share: float) -> str:
    """Four decimals as in the source, or as many as it takes not to read 0 or 100 in vain."""
    decimals = next((n for n in range(4, 15) if round(share, n + 2) not in (0, 1)), 4)
    return f"{share:.{decimals}%}"


def storage_rows() -> Iterator[list[str]]:
    """存储开销随 seqlen 变化: B = 1, H = 32."""
    for kilo in (16, 32, 64, 128):
        scores = storage.peak_one_pass(1, 32, kilo * K, STRIDE)
        extra = storage.total_extra(1, 32, kilo * K, STRIDE, KV_CHUNK)
        relative = storage.relative_extra(1, 32, kilo * K, STRIDE, KV_CHUNK)
        yield [
            f"{kilo}K",
            str(storage.num_kv_chunks(kilo * K, KV_CHUNK)),
            f"{scores / storage.GIB:g} GiB",
            f"{extra / storage.MIB:g} MiB",
            f"{storage.printed_percentage(relative)}%",
        ]


def peak_rows() -> Iterator[list[str]]:
    """峰值显存优化: B = 1, H = 32, S = 128K, C = 16K."""
    before = storage.peak_one_pass(1, 32, 128 * K, STRIDE)
    after = storage.peak_three_stages(1, 32, 128 * K, STRIDE, KV_CHUNK)
    yield [
        "128K",
        "16K",
        f"{before / storage.GIB:g} GiB",
        f"{after / storage.GIB:g} GiB",
        f"{before / after:g}",
    ]


def markdown(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from (f"### {title}", "")
    for cells in itertools.chain((columns, ["---:"] * len(columns)), rows):
        yield f"| {' | '.join(cells)} |"
    yield ""


def mask_tables(kernels: XAttentionKernels, pairs: Sequence[Pair]) -> Iterator[str]:
    """One row a pair of queries and keys; the chunk configurations of the longest."""
    columns = ("seq_len", "stride", "threshold", "kv_chunks")
    measures = ("density one-pass", "density KV-chunked", "diff", "mask_diff")
    yield from markdown(
        "KV-chunked against one pass",
        [*columns, *measures],
        (equivalence_row(kernels, pair) for pair in pairs),
    )
    yield from markdown(
        "Chunk configurations",
        ["config", "seq_len", "Q chunks", "KV chunks", "density", "alignment"],
        configuration_rows(kernels, max(pairs, key=lambda pair: pair[0].shape[2])),
    )


def storage_tables() -> Iterator[str]:
    """What needs no implementation."""
    yield from markdown(
        "Storage by sequence length",
        ["seqlen", "num_chunks", "attn_weights of one pass", "extra stats", "ratio"],
        storage_rows(),
    )
    yield from markdown(
        "Peak memory of the scores",
        ["seqlen", "KV chunk", "one pass", "KV-chunked", "times less"],
        peak_rows(),
    )


# --- the command ---------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables. A mistake on the command line is one line on stderr and exit code 2."""
    parser = Parser(prog="python -m suites.tables", description=__doc__)
    parser.add_argument("--impl", default="torch", help="a built-in name or a module")
    parser.add_argument("--device", default="cpu", help="a torch device")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="in tokens")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    options = parser.parse_args(arguments)

    for name, values in (("--lengths", options.lengths), ("--heads", [options.heads])):
        if min(values) < 1:
            parser.error(f"{name} {min(values)}: give numbers of at least 1")
    if not 0 <= options.seed < 2**63:
        parser.error(f"--seed {options.seed}: give a number in [0, 2**63)")
    device = _device(options.device, parser)
    longest = max(options.lengths)
    scores = storage.peak_one_pass(1, options.heads, longest, STRIDE)
    if device.type == "cpu" and 4 * scores > _memory():  # or the system would kill, not refuse
        parser.error(f"--lengths {longest}: scores of {scores / storage.GIB:.0f} GiB; {SMALLER}")
    kernels = _kernels(options.impl, device, parser)
    try:
        sizes = (options.heads, options.head_dim, options.seed)
        pairs = [mixture(length, *sizes, device) for length in options.lengths]
        print(f"{options.impl} on {device}: heads, head_dim, seed = {sizes}\n")
        for line in itertools.chain(mask_tables(kernels, pairs), storage_tables()):
            print(line, flush=True)
    except ValueError as error:
        parser.error(str(error))
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        parser.error(f"--lengths {longest}: out of memory; {SMALLER}")
    return 0


def _memory() -> int:
    """What the machine has, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _device(name: str, parser: Parser) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        parser.error(f"--device {name}: {reason}; use cpu, or a device that torch can see")
    return device


def _kernels(name: str, device: torch.device, parser: Parser) -> XAttentionKernels:
    if device.type == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
    try:
        exported = catalog.load(name).operations
    except catalog.CatalogError as error:
        parser.error(str(error))
    missing = [operation for operation in OPERATIONS if operation not in exported]
    if missing:
        parser.error(f"--impl {name}: has no {', '.join(missing)}; define them")
    return cast(XAttentionKernels, SimpleNamespace(**exported))


if __name__ == "__main__":
    sys.exit(main())
