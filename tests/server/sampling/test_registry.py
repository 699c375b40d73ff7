"""What privacy may assume of each sampler."""

from atoll.server.sampling import SAMPLERS, Amplification


def test_each_sampler_declares_the_amplification_that_it_allows() -> None:
    assert {name: str(sampler.amplification) for name, sampler in SAMPLERS.items()} == {
        "uniform": "fixed_size",
        "poisson": "poisson",
        "weighted": "none",
        "least_recent": "none",
        "availability": "none",
    }


def test_amplification_of_poisson_sampling_goes_with_a_random_cohort_size() -> None:
    for sampler in SAMPLERS.values():
        assert sampler.fixed_size == (sampler.amplification is not Amplification.POISSON)
