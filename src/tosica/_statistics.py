"""Old name of what is in ``tosica._stats``."""

from tosica._stats import (  # noqa: F401
    GroupMoments,
    Reference,
    SampleMeans,
    TooFewSamplesError,
    compare_samples,
    group_moments,
    moderated_t,
    sample_means,
    standardized_difference,
)
