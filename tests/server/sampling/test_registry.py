"""Properties of each sampler on which the privacy account relies."""

from atoll.server.sampling import SAMPLERS


def test_poisson_sampling_alone_draws_each_participant_by_itself() -> None:
    assert [name for name, sampler in SAMPLERS.items() if sampler.independent] == ["poisson"]
