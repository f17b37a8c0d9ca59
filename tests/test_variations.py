"""A fork with changed flags or --what-if: rounds before it are kept, and what is equal later is reused."""

import pytest

from tests.variations import Script, plain, recorded, unchanged, varied


@pytest.mark.parametrize("seed", range(20))
def test_a_variation_takes_exactly_the_exchanges_whose_requests_are_equal(seed, tmp_path):
    run, server = recorded(seed, tmp_path / "run")
    unchanged(run, server, tmp_path / "again", threads=1 + seed % 8)
    server.close()
    varied(seed, run, tmp_path / "fork")
