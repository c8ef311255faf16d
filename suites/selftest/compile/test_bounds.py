"""Where barriers may stand."""

import re

import pytest

from suites.compile.bounds import ORDERS


@pytest.mark.parametrize(
    ("operation", "order", "holds"),
    [
        ("topology_witness_indices", "LBS", True),
        ("topology_witness_indices", "LBLBS", True),
        ("topology_witness_indices", "LS", False),
        ("scatter_topology_witnesses_", "LBSLBS", False),
        ("scatter_topology_witnesses_", "LBSB", False),
        ("apply_topology_witnesses", "LBLSBS", True),
        ("apply_topology_witnesses", "LSLSBSLS", True),
        ("apply_topology_witnesses", "LBLSBSBS", False),
        ("apply_topology_witnesses", "LS", False),
    ],
)
def test_where_barriers_may_stand(operation: str, order: str, holds: bool) -> None:
    assert bool(re.fullmatch(ORDERS[operation], order)) == holds
