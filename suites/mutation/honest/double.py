"""Everything in fp64, rounded once; the marks of a row are a set."""

import torch

from suites.mutation.honest.estimation import Way
from suites.mutation.honest.rows import Rows

WAY = Way(dtype=torch.float64)
ROWS = Rows(marks=frozenset)
globals().update(WAY.operations() | ROWS.operations())
