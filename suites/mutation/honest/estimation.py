"""XAttention by a way of computing: what the honest variants share, and what each may choose.

Nothing here is made for speed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.xattention import refusals

State = tuple[Tensor, Tensor]  # m and l


def _sum(values: Tensor) -> Tensor:
    return values.sum(-1)


def _product(queries: Tensor, keys: Tensor) -> Tensor:
    return queries @ keys.mT


@dataclass(frozen=True)
class Way:
    """``dtype``: of all that is computed; ``exp``: of differences, at most 0; ``total``: the sum
    over the last dim; ``product``: ``[..., i, d]`` and ``[..., j, d]`` to ``[..., i, j]``;
    ``tile``: keys whose statistics are taken at once, None: all; ``latest_first``: parts are merged
    from the last to the first, else by twos; and of blocks with equal sums the last comes first.
    """

    dtype: torch.dtype = torch.float32
    exp: Callable[[Tensor], Tensor] = torch.exp
    total: Callable[[Tensor], Tensor] = _sum
    product: Callable[[Tensor, Tensor], Tensor] = _product
    tile: int | None = None
    latest_first: bool = False

    def operations(self) -> dict[str, Callable[..., Any]]:
        """The operations of the family, by name."""
        each = (
            self.flat_group_gemm_fuse_reshape,
            self.softmax_fuse_block_sum,
            self.softmax_compute_partial_stats,
            self.merge_softmax_stats,
            self.softmax_normalize_and_block_sum,
            self.find_blocks_chunked,
            self.xattn_estimate,
        )
        return {operation.__name__: operation for operation in each}

    # --- scores ----------------------------------------------------------------------------------

    def flat_group_gemm_fuse_reshape(
        self,
        query_states: Tensor,
        key_states: Tensor,
        stride: int,
        chunk_start: int,
        chunk_end: int,
        is_causal: bool = True,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        refusals.check_scores(query_states, key_states, stride, chunk_start, chunk_end, out_dtype)
        scores = self._scores(query_states, key_states, stride)
        return scores.to(out_dtype or query_states.dtype)

    def _scores(self, queries: Tensor, keys: Tensor, stride: int) -> Tensor:
        """One long vector a position, of tokens of queries from the last back."""
        queries, keys = (
            torch.unflatten(
                pad(states.to(self.dtype), (0, 0, 0, -states.shape[2] % stride)), 2, (-1, stride)
            )
            for states in (queries, keys)
        )
        return self.product(queries.flip(3).flatten(3), keys.flatten(3))

    # --- softmax ---------------------------------------------------------------------------------

    def _logits(self, scores: Tensor, scale: float, diagonal: int, is_causal: bool) -> Tensor:
        """x, and -inf where it is masked."""
        x = scores.to(self.dtype) * scale
        rows, columns = x.shape[2:]
        seen = torch.ones(rows, columns, dtype=torch.bool)
        return torch.where(seen.tril(diagonal) if is_causal else seen, x, -math.inf)

    def _statistics(self, x: Tensor) -> State:
        width = max(x.shape[-1], 1)
        tile = self.tile or width
        x = pad(x, (0, width - x.shape[-1] + (-width % tile)), value=-math.inf)
        tiles = torch.unflatten(x, -1, (-1, tile))
        m = tiles.amax(-1)
        return self._merged(m, self.total(self.exp(tiles - _subtrahend(m).unsqueeze(-1))))

    def _merged(self, m: Tensor, total: Tensor) -> State:
        """Of parts along the last dim: one by one from the last, or neighbours to one."""
        if self.latest_first:
            *parts, state = zip(m.unbind(-1), total.unbind(-1), strict=True)
            return reduce(self._pair, reversed(parts), state)
        while (count := m.shape[-1]) > 1:
            m, total = pad(m, (0, count % 2), value=-math.inf), pad(total, (0, count % 2))
            halves = (torch.unflatten(each, -1, (-1, 2)).unbind(-1) for each in (m, total))
            m, total = self._pair(*zip(*halves, strict=True))
        return m.squeeze(-1), total.squeeze(-1)

    def _pair(self, one: State, other: State) -> State:
        (m, total), (other_m, other_total) = one, other
        largest = torch.maximum(m, other_m)
        own, its = (self.exp(each - _subtrahend(largest)) for each in (m, other_m))
        return largest, total * own + other_total * its

    def softmax_compute_partial_stats(
        self,
        attn_weights_slice: Tensor,
        reshaped_block_size: int,
        segment_size: int,
        scale: float,
        chunk_start: int = 0,
        kv_offset: int = 0,
        is_causal: bool = False,
    ) -> State:
        tiling = (reshaped_block_size, segment_size, scale)
        refusals.check_softmax(attn_weights_slice, *tiling, chunk_start, kv_offset)
        x = self._logits(attn_weights_slice, scale, chunk_start - kv_offset, is_causal)
        m, total = self._statistics(x)
        return m.float(), total.float()

    def merge_softmax_stats(self, m_chunks: Sequence[Tensor], l_chunks: Sequence[Tensor]) -> State:
        refusals.check_chunks(m_chunks, l_chunks)
        chunks = (torch.stack(list(each), -1).to(self.dtype) for each in (m_chunks, l_chunks))
        m, total = self._merged(*chunks)
        return m.float().clone(), total.float().clone()

    def _block_sums(self, x: Tensor, state: State, block: int, real_rows: int) -> Tensor:
        m, total = (each.to(self.dtype).unsqueeze(-1) for each in state)
        real = torch.arange(x.shape[2]).unsqueeze(1) < real_rows
        counted = real & (total != 0) & (x != -math.inf)
        weight = torch.where(counted, self.exp(x - _subtrahend(m)) / total, 0)
        blocks = torch.unflatten(torch.unflatten(weight, 3, (-1, block)), 2, (-1, block))
        return self.total(blocks.transpose(3, 4).flatten(4))

    def softmax_normalize_and_block_sum(
        self,
        attn_weights_slice: Tensor,
        m_global: Tensor,
        l_global: Tensor,
        reshaped_block_size: int,
        segment_size: int,
        chunk_start: int,
        real_q_len: int,
        scale: float,
        kv_offset: int = 0,
        is_causal: bool = False,
    ) -> Tensor:
        tiling = (reshaped_block_size, segment_size, scale)
        refusals.check_softmax(attn_weights_slice, *tiling, chunk_start, kv_offset)
        refusals.check_blocks(attn_weights_slice, reshaped_block_size, real_q_len)
        refusals.check_statistics(attn_weights_slice, m_global, l_global)
        x = self._logits(attn_weights_slice, scale, chunk_start - kv_offset, is_causal)
        state, real_rows = (m_global, l_global), real_q_len - chunk_start
        sums = self._block_sums(x, state, reshaped_block_size, real_rows)
        return sums.to(attn_weights_slice.dtype)

    def softmax_fuse_block_sum(
        self,
        attn_weights_slice: Tensor,
        reshaped_block_size: int,
        segment_size: int,
        chunk_start: int,
        chunk_end: int,
        real_q_len: int,
        scale: float,
        is_causal: bool = True,
    ) -> Tensor:
        tiling = (reshaped_block_size, segment_size, scale)
        refusals.check_softmax(attn_weights_slice, *tiling, chunk_start)
        refusals.check_blocks(attn_weights_slice, reshaped_block_size, real_q_len)
        refusals.check_one_pass(attn_weights_slice, chunk_start, chunk_end)
        x = self._logits(attn_weights_slice, scale, chunk_start, is_causal)
        real_rows = real_q_len - chunk_start
        sums = self._block_sums(x, self._statistics(x), reshaped_block_size, real_rows)
        return sums.to(attn_weights_slice.dtype)

    # --- selection and the estimate --------------------------------------------------------------

    def find_blocks_chunked(
        self,
        input_tensor: Tensor,
        current_index: int,
        threshold: float,
        num_to_choose: None = None,
        decoding: bool = False,
        mode: str = "prefill",
        causal: bool = True,
    ) -> Tensor:
        refusals.check_selection(
            input_tensor, current_index, threshold, num_to_choose, decoding, mode, causal
        )
        q_blocks, k_blocks = input_tensor.shape[2:]
        everywhere = torch.ones(q_blocks, k_blocks, dtype=torch.bool)
        visible = everywhere.tril(current_index) if causal else everywhere
        mandatory = visible & ~everywhere.tril(current_index - 1) if causal else ~everywhere
        mandatory[:, 0] |= causal

        mass = torch.where(visible, input_tensor.to(self.dtype), 0)
        limit = threshold * self.total(mass)
        wanted = (mass > 0) & (self._before(mass, mandatory) < limit.unsqueeze(-1))
        wanted |= (mass > 0) & (threshold == 1)
        return (wanted | mandatory | limit.isnan().unsqueeze(-1)) & visible

    def _before(self, mass: Tensor, mandatory: Tensor) -> Tensor:
        """Of each block, the mass of those that come before it: no sorting, each against each."""
        columns = torch.arange(mass.shape[-1])
        earlier = columns < columns.unsqueeze(1)
        earlier = earlier.mT if self.latest_first else earlier
        one, other = mass.unsqueeze(-1), mass.unsqueeze(-2)
        ahead = (other > one) | ((other == one) & earlier) | mandatory.unsqueeze(-2)
        return self.total(torch.where(ahead, other, 0))

    def xattn_estimate(
        self,
        query_states: Tensor,
        key_states: Tensor,
        block_size: int,
        stride: int,
        norm: float = 1.0,
        threshold: float = 0.9,
        chunk_size: int = 16384,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor]:
        refusals.check_estimate(
            query_states, key_states, block_size, stride, norm, threshold, chunk_size, causal
        )
        scale = refusals.estimate_scale(query_states, stride, norm)
        block, more = block_size // stride, key_states.shape[2] - query_states.shape[2]
        sums = []
        for start, queries in _chunks(query_states, chunk_size):
            logits = [
                self._logits(
                    _whole_blocks(scale * self._scores(queries, keys, stride), block),
                    1.0,
                    (more + start - kv_start) // stride,
                    causal,
                )
                for kv_start, keys in _chunks(key_states, chunk_size)
            ]
            parts = zip(*map(self._statistics, logits), strict=True)
            state = self._merged(*(torch.stack(each, -1) for each in parts))
            rows = [self._block_sums(x, state, block, x.shape[2]) for x in logits]
            sums.append(torch.cat(rows, -1))
        block_sums = torch.cat(sums, 2).to(query_states.dtype)
        index = more // block_size if causal else 0
        return block_sums, self.find_blocks_chunked(block_sums, index, threshold, causal=causal)


def _subtrahend(m: Tensor) -> Tensor:
    """A maximum, or 0 where there is none."""
    return torch.where(m == -math.inf, 0, m)


def _chunks(states: Tensor, size: int) -> list[tuple[int, Tensor]]:
    return [
        (start, states[:, :, start : start + size]) for start in range(0, states.shape[2], size)
    ]


def _whole_blocks(x: Tensor, block: int) -> Tensor:
    """Padded rows and columns have no weight."""
    return pad(x, (0, -x.shape[3] % block, 0, -x.shape[2] % block), value=-math.inf)
