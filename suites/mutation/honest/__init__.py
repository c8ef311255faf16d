"""Implementations that go other ways than ours and are right: none of them may fail a test.

Each is a module for ``--impl``, `suites.mutation.honest.compensated` for one, and has all of both
families. They differ in what an author is free to choose: the type inside, the base and the order
of sums, where keys are cut and how parts are merged, which of equal blocks comes first, how the
marks of a row are kept. ``python -m suites.mutation.honest`` runs the main job on all of them, over
many seeds.
"""

from typing import Final

VARIANTS: Final = ("backwards", "base_two_inside", "compensated", "double", "tiles")

# What a record calls the cases of the main job.
GENERATED: Final = "generated"
GIVEN: Final = "the same for every seed"
